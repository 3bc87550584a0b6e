"""`python -m runtime`: speaks, transcribes, or examines a bundle. Only ExecuTorch bundles need torch."""

import sys
from collections.abc import Sequence

from voxport.bundle.interruption import end_without_traceback


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; `bundle.errors` lists them."""
    end_without_traceback()
    from voxport.bundle.command import run_command_line
    from voxport.runtime.commands import COMMANDS

    return run_command_line("python -m runtime", "Run a voxport bundle.", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
