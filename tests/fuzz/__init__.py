"""Hostile and damaged inputs for the real commands: `make fuzz`. `test_fuzz.py` runs a small share."""
