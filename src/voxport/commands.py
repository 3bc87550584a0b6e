"""The commands of `voxport`. Some differ from those of the packages:

`trace` runs a bundle, and `trace-eager` the model in PyTorch. `say`, `transcribe` and `serve` use the
embedded models if no bundle is given.
"""

from dataclasses import replace

from voxport.bundle.command import Command
from voxport.export.commands import COMMANDS as EXPORT
from voxport.model.commands import COMMANDS as MODEL
from voxport.runtime.commands import COMMANDS as RUNTIME

WITHOUT_BUNDLE = ("say", "transcribe", "serve")
COMMANDS = (
    *(replace(command, name="trace-eager") if command.name == "trace" else command for command in EXPORT),
    *(
        replace(command, module=f"voxport.{command.name}") if command.name in WITHOUT_BUNDLE else command
        for command in RUNTIME
    ),
    *MODEL,
    Command("completion", "print the completion script of a shell", "voxport.completion", example="bash"),
)
