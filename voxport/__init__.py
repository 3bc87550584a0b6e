"""The command `voxport`: all commands of `python -m export`, `python -m runtime` and `python -m model`."""
