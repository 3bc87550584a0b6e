"""The commands of `voxport`. Three differ from those of the packages:

`trace` runs a bundle, and `trace-eager` the model in PyTorch. `bench` has the exporter's option
`--compare eager`. `serve` exports the embedded models where no bundle is given.
"""

from dataclasses import replace

from bundle.command import Command
from export.commands import COMMANDS as EXPORT
from model.commands import COMMANDS as MODEL
from runtime.commands import COMMANDS as RUNTIME

COMMANDS = (
    *(replace(command, name="trace-eager") if command.name == "trace" else command for command in EXPORT),
    *(
        replace(command, module="voxport.serve") if command.name == "serve" else command
        for command in RUNTIME
        if command.name != "bench"
    ),
    *MODEL,
    Command("completion", "print the completion script of a shell", "voxport.completion", example="bash"),
)
