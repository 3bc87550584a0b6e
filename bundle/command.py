"""The command line of every package: a table of commands, error handling with exit codes, logging.

Results go to stdout, progress and messages to stderr. `bundle.errors` lists the exit codes.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO

from voxport.bundle.errors import UsageError, VoxportError, one_line
from voxport.bundle.files import check_apart
from voxport.bundle.versions import version_text

INTERRUPTED = 130  # the exit code; those of errors are in `bundle.errors`
QUIET_S = 2.0
OUTPUTS = "output", "report", "plot", "voices"  # names of the arguments that are files to write
SERVER_MODULES = ("fastapi", "prometheus_client", "python_multipart", "starlette", "uvicorn", "websockets")
EXAMPLE_BUNDLE = "artifacts/voxtral-tts-tiny-onnx-w8"  # in examples of commands


@dataclass(frozen=True)
class Command:
    """A subcommand. `module` is imported only when the command is used.

    The module has `add_arguments(parser)`, and `run(arguments)`, which returns the exit code or raises
    VoxportError. Its docstring is the description in its help. `if_interrupted` is advice to continue.
    `example` has the arguments of a call that the help shows.
    """

    name: str
    summary: str
    module: str
    if_interrupted: str = ""
    example: str = ""


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def with_flag(self, error: VoxportError) -> str:
        """The message of `error`, with the option's flag in place of the field's name."""
        message, field = str(error), error.field
        if field is None:
            return message
        flags = [flag for action in self._actions if action.dest == field for flag in action.option_strings]
        separator = "" if message.startswith(field) else ": "
        return f"{flags[-1] if flags else field}{separator}{message.removeprefix(field)}"


def run_command_line(
    prog: str,
    description: str,
    commands: Sequence[Command],
    argv: Sequence[str] | None = None,
    default: str | None = None,
) -> int:
    """Runs one command and returns its exit code. `default` is the command if `argv` starts with an option.

    Only `--help` and `--version` raise SystemExit. Unexpected errors are raised as they are.
    """
    parser, if_interrupted = Parser(prog=prog), ""
    _set_up_streams()
    set_up_logging()
    interruption = _handle_signals()
    try:
        parser, command, rest = _choose(
            prog, description, commands, sys.argv[1:] if argv is None else argv, default
        )
        if_interrupted = command.if_interrupted
        return _run(command, parser, rest)
    except VoxportError as error:
        return _fail(f"error: {parser.with_flag(error)}", error.exit_code)
    except BrokenPipeError:  # the reader of stdout has ended
        _discard_stdout()
        return 0
    except OSError as error:
        if error.filename is None:  # stdout cannot be written
            _discard_stdout()
        where = f"{str(error.filename)[:200]}: " if error.filename else ""
        return _fail(f"error: {where}{error.strerror or error}", VoxportError.exit_code)
    except MemoryError:
        return _fail("error: not enough memory", VoxportError.exit_code)
    except ModuleNotFoundError as error:
        return _fail(f"error: {_missing_module(str(error.name))}", UsageError.exit_code)
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, Exception) and not interruption.is_recent:
            raise
        code = _fail("; ".join(filter(None, ("interrupted", if_interrupted))), INTERRUPTED)
        for each in (signal.SIGINT, signal.SIGTERM):  # nothing is left to clean up or to say
            signal.signal(each, signal.SIG_DFL)
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


def _run(command: Command, parser: Parser, argv: Sequence[str]) -> int:
    module = import_module(command.module)
    parser.description = module.__doc__
    module.add_arguments(parser)
    add_verbosity(parser)
    arguments = parser.parse_args(argv)
    set_up_logging(arguments.verbosity)
    _check_outputs(arguments)
    code: int = module.run(arguments)
    sys.stdout.flush()  # before `run_command_line` returns: it reports a full disk
    return code


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Raises UsageError on an output file that is in a bundle of the command, or one of its inputs."""
    values = {name: value if isinstance(value, list) else [value] for name, value in vars(arguments).items()}
    paths = {
        name: [Path(each) for each in found if isinstance(each, Path) or (name == "sources" and each)]
        for name, found in values.items()
    }
    inputs = [path for name, found in paths.items() if name not in OUTPUTS for path in found]
    for name in OUTPUTS:
        for output in paths.get(name, []):
            check_apart(output, name, paths.get("bundle", []), inputs)


def _handle_signals() -> _Interruption:
    interruption = _Interruption()
    signal.signal(signal.SIGTERM, interruption)
    handled = (signal.default_int_handler, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) in handled:  # not ignored, as by a background job
        signal.signal(signal.SIGINT, interruption)
    return interruption


def _choose(
    prog: str, description: str, commands: Sequence[Command], argv: Sequence[str], default: str | None
) -> tuple[Parser, Command, Sequence[str]]:
    """The command that `argv` names, an empty parser for it, and its arguments. Raises UsageError."""
    table = {command.name: command for command in commands}
    rows = "\n".join(
        f"  {command.name:<12} {command.summary}" for command in commands if command.name != default
    )
    epilog = f"{'other ' if default else ''}commands, each with --help:\n{rows}"
    layout = argparse.RawDescriptionHelpFormatter
    if argv[:1] == ["help"] or not (argv or default):
        argv = [*(word for word in argv[1:2] if word != "help"), "--help"]
    if default and (not argv or argv[0].startswith("-")):
        epilog = f"{_example(prog, table[default])}\n\n{epilog}"
        return Parser(prog=prog, epilog=epilog, formatter_class=layout), table[default], argv
    if argv and argv[0] in table:
        command, called = table[argv[0]], f"{prog} {argv[0]}"
        return (
            Parser(prog=called, epilog=_example(called, command), formatter_class=layout),
            command,
            argv[1:],
        )
    top = Parser(prog, f"{prog} COMMAND ...", description, epilog, formatter_class=layout)
    top.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    versions = "print the versions of voxport and of the engines"
    top.add_argument("--version", action="version", version=version_text(), help=versions)
    found = top.parse_args(argv[:1]).command
    raise UsageError(f"command {found!r} is unknown; expected one of {', '.join(table)}")


def _example(prog: str, command: Command) -> str:
    return f"example:\n  {prog} {command.example}" if command.example else ""


def _missing_module(name: str) -> str:
    head = name.partition(".")[0]
    extra = "serve" if head in SERVER_MODULES else "export"
    return (
        f"{name} is not installed; install voxport with its extra [{extra}]: "
        f"pip install '.[{extra}]' in its folder"
    )


def _fail(message: str, code: int) -> int:
    """Prints the last line of a command: a thread that still runs logs nothing behind it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _StderrHandler):
            handler.setLevel(logging.CRITICAL + 1)
    print(f"voxport: {one_line(message)}", file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Prevents a second error when Python flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    group = parser.add_mutually_exclusive_group()
    for flags, level, text in (
        (("-q", "--quiet"), logging.WARNING, "show only warnings and errors"),
        (("-v", "--verbose"), logging.DEBUG, "show more of what is done"),
    ):
        group.add_argument(
            *flags, dest="verbosity", action="store_const", const=level, default=logging.INFO, help=text
        )


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at that moment: a progress bar replaces it to stay below the lines."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None: ...


def set_up_logging(level: int = logging.INFO) -> None:
    """Logs to stderr with the seconds since the start: voxport from `level`, other packages errors."""
    handler = _StderrHandler()
    handler.setFormatter(_PrintableFormatter())
    logging.basicConfig(level=logging.ERROR, handlers=[handler], force=True)
    logging.getLogger("voxport").setLevel(level)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # torch sets a lower level when imported


class _PrintableFormatter(logging.Formatter):
    """The seconds since the start and the message. Control characters that a message quotes would change the
    terminal, so they are replaced.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = f"[{record.relativeCreated / 1000:6.1f}s] {super().format(record)}"
        return "".join(
            character if character.isprintable() or character == "\n" else " " for character in text
        )


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """A type of an argument: an integer of at least `least` and at most `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected an integer, found {text!r}") from None
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"expected {bounds}, found {value}")
        return value

    return parse
