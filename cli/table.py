"""The table of all commands."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

BUNDLE = "artifacts/voxtral-tts-tiny-onnx-w8"  # in examples


@dataclass(frozen=True)
class Command:
    """A subcommand. `place` is a module of `commands`, or `module:Class`; by default the module of its name.

    It is imported only when the command is used. It has `add_arguments(parser)`, and `run(arguments)`, which
    returns the exit code or raises VoxportError. Its docstring is the description in its help. `example` has
    the arguments of a call that the help shows. `if_interrupted` is advice to continue.
    """

    name: str
    summary: str
    example: str
    place: str = ""
    if_interrupted: str = ""

    def load(self) -> Any:
        """The module or class."""
        module, _, name = (self.place or self.name).partition(":")
        found = import_module(f"voxport.cli.commands.{module}")
        return getattr(found, name) if name else found

    def example_text(self, called: str) -> str:
        return f"example:\n  {called} {self.example}"


COMMANDS = (
    Command(
        "export",
        "export a checkpoint to ONNX, ExecuTorch or Core ML",
        "--checkpoint Voxtral-4B-TTS-2603 --target onnx --quant w4g128",
        if_interrupted="run the same command again to continue after the finished graphs",
    ),
    Command("verify", "verify a bundle against eager PyTorch again", BUNDLE),
    Command("list", "list models, targets, recipes, components and module paths", "--json"),
    Command("say", "speak a text", f'"Hello there." --bundle {BUNDLE} -o hello.wav'),
    Command(
        "transcribe",
        "transcribe a recording or live audio",
        "talk.flac --bundle artifacts/voxtral-realtime-tiny-onnx-8da4w -o talk.srt",
    ),
    Command(
        "voice",
        "make a voice from a recording or from other voices",
        "add anna anna.wav --bundle artifacts/qwen3-tts-tiny-onnx-w8",
    ),
    Command("voices", "list the voices of a bundle", BUNDLE, "info:Voices"),
    Command(
        "codec",
        "turn recordings into codes, and codes into recordings",
        "encode speech.wav codes.npz --bundle artifacts/qwen3-tts-tiny-onnx-w8",
    ),
    Command("serve", "serve bundles over HTTP and WebSockets", f"--bundle {BUNDLE} --port 8000"),
    Command("info", "show what a bundle holds and how it was verified", BUNDLE),
    Command("evaluate", "measure how well a bundle speaks or transcribes", BUNDLE),
    Command(
        "sweep",
        "measure what each part of a model loses by quantisation",
        f"{BUNDLE} --layers",
        "evaluate:Sweep",
    ),
    Command(
        "bench",
        "measure the speed of a bundle",
        f"{BUNDLE} --frames 20 --threads 2",
    ),
    Command(
        "trace",
        "write all intermediate values of a run",
        f"{BUNDLE} --inputs inputs.npz -o bundle.npz",
    ),
    Command(
        "mil",
        "show the contents of a Core ML package",
        "artifacts/voxtral-tts-tiny-coreml-w8/codec.mlpackage",
        "info:Mil",
    ),
    Command("inspect", "check a checkpoint and list what it holds", "Voxtral-4B-TTS-2603"),
    Command(
        "convert",
        "convert weights to and from mlx-audio, or to another precision",
        "Qwen3-TTS-12Hz-0.6B-Base qwen-mlx --to mlx --quant w4",
        if_interrupted="run the same command again to continue after the finished files",
    ),
    Command(
        "synth",
        "write a synthetic checkpoint",
        "checkpoint --model voxtral-realtime --size small",
        "convert:Synth",
        if_interrupted="no partial checkpoint was left",
    ),
    Command("completion", "print the completion script of a shell", "bash"),
)
