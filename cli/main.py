"""The table of all commands, and how one runs: arguments, errors with exit codes, signals.

Results go to stdout, progress and messages to stderr. `bundle.errors` lists the exit codes.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from voxport.bundle.errors import UsageError, VoxportError, one_line
from voxport.bundle.progress import shown_by
from voxport.cli.arguments import Parser, add_verbosity, check_outputs, fetch_named
from voxport.cli.terminal import Progress, set_up_logging, silence

INTERRUPTED = 130  # exit code; `bundle.errors` has the codes of errors
QUIET_S = 2.0
SERVER_MODULES = [
    "av",
    "fastapi",
    "prometheus_client",
    "python_multipart",
    "starlette",
    "uvicorn",
    "websockets",
]
DESCRIPTION = "Export, verify and run speech models on devices."
BUNDLE = "artifacts/voxtral-tts-tiny-onnx-w8"  # in examples

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Command:
    """A subcommand. `place` is a module of `commands`, or `module:Class`; by default the module of its name.

    It is imported only when the command is used. It has `add_arguments(parser)`, and `run(arguments)`, which
    returns the exit code or raises VoxportError. It may have `check_arguments(arguments)`, which runs before
    anything is fetched from a hub. Its docstring is the description in its help. `example` has the arguments
    of a call that the help shows. `if_interrupted` is advice to continue.
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
        "export a checkpoint to ONNX, ExecuTorch, Core ML or Core AI",
        "--checkpoint Voxtral-4B-TTS-2603 --target onnx --quant w4g128",
        if_interrupted="run the same command again to continue after the finished graphs",
    ),
    Command("verify", "verify a bundle against eager PyTorch again", BUNDLE),
    Command("list", "list models, targets, recipes, components and module paths", "--json"),
    Command("say", "speak a text", f'"Hello there." --bundle {BUNDLE} -o hello.wav'),
    Command(
        "transcribe",
        "transcribe recordings or live audio",
        "talk.flac --bundle artifacts/voxtral-realtime-tiny-onnx-8da4w -o talk.srt",
    ),
    Command(
        "align",
        "find the times of the words of a text in a recording",
        "talk.wav --text talk.txt --language en --bundle ALIGNER -o talk.srt",
    ),
    Command(
        "voice",
        "make a voice from a recording or other voices, list and remove voices",
        "add anna anna.wav --bundle artifacts/qwen3-tts-tiny-onnx-w8",
    ),
    Command(
        "codec",
        "turn recordings into codes, and codes into recordings",
        "encode speech.wav codes.npz --bundle artifacts/qwen3-tts-tiny-onnx-w8",
    ),
    Command("serve", "serve bundles over HTTP and WebSockets", f"--bundle {BUNDLE} --port 8000"),
    Command("web", "write a static folder that speaks and transcribes in a browser", f"{BUNDLE} page"),
    Command("push", "upload a bundle to a model hub", f"{BUNDLE} me/my-voice --private"),
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
        "vectors",
        "compare a runner with the values of a short run",
        f"{BUNDLE} --check found.json",
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
        "convert weights to and from mlx-audio and transformers, or to another precision",
        "Qwen3-TTS-12Hz-0.6B-Base qwen-mlx --to mlx --quant w4",
        if_interrupted="no partial folder was left",
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


def run_command_line(
    argv: Sequence[str], prog: str, default: str | None = None, commands: Sequence[Command] = COMMANDS
) -> int:
    """Runs one command and returns its exit code. `default` is the command if `argv` starts with an option.

    Only `--help` and `--version` raise SystemExit. Unexpected errors are raised as they are.
    """
    parser, if_interrupted = Parser(prog=prog), ""
    _set_up_streams()
    set_up_logging()
    interruption = _handle_signals()
    try:
        parser, command, rest = _choose(argv, prog, default, commands)
        if_interrupted = command.if_interrupted
        return _run(command, parser, rest)
    except VoxportError as error:
        if interruption.is_recent:  # a library raised its own error, and this one stands for it
            log.info("%s", parser.with_flag(error))
            return _interrupted(if_interrupted)
        return _fail(f"error: {parser.with_flag(error)}", error.exit_code)
    except BrokenPipeError:  # the reader of stdout has ended
        _discard_stdout()
        return 0
    except OSError as error:
        if error.filename is None:  # stdout cannot be written
            _discard_stdout()
        place = f"{str(error.filename)[:200]}: " if error.filename else ""
        return _fail(f"error: {place}{error.strerror or error}", VoxportError.exit_code)
    except MemoryError:
        return _fail("error: not enough memory", VoxportError.exit_code)
    except ModuleNotFoundError as error:
        return _fail(f"error: {_missing_module(str(error.name))}", UsageError.exit_code)
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, Exception) and not interruption.is_recent:
            raise
        return _interrupted(if_interrupted)


def _interrupted(advice: str) -> int:
    code = _fail("; ".join(filter(None, ("interrupted", advice))), INTERRUPTED)
    for each in (signal.SIGINT, signal.SIGTERM):  # nothing is left to clean up or to say
        signal.signal(each, signal.SIG_DFL)
    return code


def _choose(
    argv: Sequence[str], prog: str, default: str | None, commands: Sequence[Command]
) -> tuple[Parser, Command, Sequence[str]]:
    """The command that `argv` names, an empty parser for it, and its arguments. Raises UsageError."""
    table = {command.name: command for command in commands}
    if argv[:1] == ["help"] or not (argv or default):
        argv = [*argv[1:2], "--help"]
    if argv and argv[0] in table:
        called = f"{prog} {argv[0]}"
        return _parser(called, table[argv[0]].example_text(called)), table[argv[0]], argv[1:]
    rows = "\n".join(f"  {command.name:<12} {command.summary}" for command in commands)
    epilog = f"commands, each with --help:\n{rows}"
    if default and (not argv or argv[0].startswith("-")):
        return _parser(prog, f"{table[default].example_text(prog)}\n\n{epilog}"), table[default], argv
    from voxport.bundle.names import did_you_mean
    from voxport.bundle.versions import version_text

    top = _parser(prog, epilog)
    top.usage, top.description = f"{prog} COMMAND ...", DESCRIPTION
    top.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    versions = "print the versions of voxport and of the engines"
    top.add_argument("--version", action="version", version=version_text(), help=versions)
    found = top.parse_args(argv[:1]).command
    known = f"{', '.join(table)}{did_you_mean(found, table)}"
    raise UsageError(f"command {found!r} is unknown; expected one of {known}")


def _parser(prog: str, epilog: str) -> Parser:
    return Parser(prog=prog, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)


def _run(command: Command, parser: Parser, argv: Sequence[str]) -> int:
    module = command.load()
    parser.description = module.__doc__
    module.add_arguments(parser)
    add_verbosity(parser)
    arguments = parser.parse_intermixed_args(argv)  # several files may stand on both sides of options
    set_up_logging(arguments.verbosity)
    check_outputs(arguments)
    if check := getattr(module, "check_arguments", None):
        check(arguments)
    fetch_named(arguments)
    with shown_by(Progress):
        code: int = module.run(arguments)
    sys.stdout.flush()  # before `run_command_line` returns: it reports a full disk
    return code


def _set_up_streams() -> None:
    # Python starts without one of them if its descriptor is closed
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files that are not UTF-8


class _Interruption:
    """A signal handler that raises KeyboardInterrupt.

    Signals that follow within `QUIET_S` are ignored, so that quick clean-up is complete. Later ones are not:
    a library may have caught the first one, or raised another error in its place.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0

    @property
    def is_recent(self) -> bool:
        return time.monotonic() < self._quiet_until

    def __call__(self, number: int, frame: object) -> None:
        if not self.is_recent:
            self._quiet_until = time.monotonic() + QUIET_S
            raise KeyboardInterrupt


def _handle_signals() -> _Interruption:
    interruption = _Interruption()
    signal.signal(signal.SIGTERM, interruption)
    handled = (signal.default_int_handler, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) in handled:  # not ignored, as by a background job
        signal.signal(signal.SIGINT, interruption)
    return interruption


def _missing_module(name: str) -> str:
    extra = "serve" if name.partition(".")[0] in SERVER_MODULES else "export"
    return f"{name} is not installed; run pip install 'voxport[{extra}]'"


def _fail(message: str, code: int) -> int:
    """Prints the last line of a command."""
    silence()
    print(f"voxport: {one_line(message)}", file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Prevents a second error when Python flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
