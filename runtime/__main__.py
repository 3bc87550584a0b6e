"""`python -m runtime`: speak, transcribe, or examine a bundle. Needs no torch, except for ExecuTorch bundles."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bundle.command import run_command_line
from runtime.commands import COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; `bundle.errors` lists them."""
    return run_command_line("python -m runtime", "Run a voxport bundle.", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
