"""`voxport` or `python -m voxport`. Two commands differ from those of the packages:

`trace` runs a bundle, and `trace-eager` the model in PyTorch. `bench` has the exporter's option
`--compare eager`.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from bundle.command import Command, run_command_line
from bundle.completion import answer_shell
from export.commands import COMMANDS as EXPORT
from model.commands import COMMANDS as MODEL
from runtime.commands import COMMANDS as RUNTIME

COMMANDS = (
    *(replace(command, name="trace-eager") if command.name == "trace" else command for command in EXPORT),
    *(command for command in RUNTIME if command.name != "bench"),
    *MODEL,
    Command("completion", "print the completion script of a shell", "voxport.completion", example="bash"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; `bundle.errors` lists them."""
    answer_shell("voxport", COMMANDS)
    return run_command_line("voxport", "Export, verify and run speech models on devices.", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
