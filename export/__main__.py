"""`python -m export`: export a checkpoint to verified bundles, verify or examine them."""

import sys
from collections.abc import Sequence

from voxport.bundle.interruption import end_without_traceback


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; `bundle.errors` lists them. Options without a command belong to `export`."""
    end_without_traceback()
    from voxport.bundle.command import run_command_line
    from voxport.export.commands import COMMANDS

    return run_command_line(
        "python -m export", "Export speech checkpoints and verify the bundles.", COMMANDS, argv, "export"
    )


if __name__ == "__main__":
    sys.exit(main())
