"""`python -m model`: inspect a checkpoint, or write a synthetic one."""

import sys
from collections.abc import Sequence

from voxport.bundle.interruption import end_without_traceback


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; `bundle.errors` lists them."""
    end_without_traceback()
    from voxport.bundle.command import run_command_line
    from voxport.model.commands import COMMANDS

    return run_command_line("python -m model", "Speech checkpoints as published.", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
