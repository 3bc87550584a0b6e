"""`voxport` or `python -m voxport`: all commands."""

import sys
from collections.abc import Sequence

from voxport.bundle.interruption import end_without_traceback


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; `bundle.errors` lists them."""
    end_without_traceback()
    from voxport.bundle.command import run_command_line
    from voxport.bundle.completion import answer_shell
    from voxport.commands import COMMANDS

    answer_shell("voxport", COMMANDS)
    return run_command_line("voxport", "Export, verify and run speech models on devices.", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
