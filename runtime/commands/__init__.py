"""The commands of `python -m runtime`."""

from bundle.command import Command

COMMANDS = (
    Command("say", "speak a text", "runtime.commands.say"),
    Command("transcribe", "transcribe a recording or live audio", "runtime.commands.transcribe"),
    Command("voices", "list the voices of a bundle", "runtime.commands.voices"),
    Command("info", "show what a bundle holds and how it was verified", "runtime.commands.info"),
    Command("bench", "measure the speed of a bundle", "runtime.commands.bench"),
    Command("trace", "write all intermediate values of a bundle's run", "runtime.commands.trace"),
    Command("mil", "show the contents of a Core ML package", "runtime.commands.mil"),
)
