"""The commands of `python -m model`."""

from voxport.bundle.command import Command

COMMANDS = (
    Command(
        "inspect",
        "check a checkpoint and list what it holds",
        "voxport.model.commands.inspect",
        example="Voxtral-4B-TTS-2603",
    ),
    Command(
        "synth",
        "write a synthetic checkpoint",
        "voxport.model.commands.synth",
        "no partial checkpoint was left",
        example="checkpoint --model voxtral-realtime --size small",
    ),
)
