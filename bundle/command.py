"""The command line of every package: a table of commands, error handling with exit codes, and logging.

Results go to stdout, progress and messages to stderr. `bundle.errors` lists the exit codes.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, Protocol, cast

from bundle.errors import UsageError, VoxportError, one_line, system_error

PACKAGES = ("bundle", "model", "quantize", "export", "runtime", "voxport")
USAGE, FAILED, INTERRUPTED = 2, 3, 130
CLEAR_LINE = "\r\033[K"  # removes a progress bar from a terminal


@dataclass(frozen=True)
class Command:
    """A subcommand. `module` implements `CommandModule` and is imported only when the command is used.

    The module's docstring is the description in its help. `if_interrupted` tells the user how to continue.
    """

    name: str
    summary: str
    module: str
    if_interrupted: str = ""


class CommandModule(Protocol):
    """The functions of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Returns the exit code. Raises VoxportError."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def with_flag(self, error: VoxportError) -> str:
        """The message of `error`, with the option's flag in place of the field's name."""
        message, field = str(error), error.field
        if field is None:
            return message
        flags = (action.option_strings for action in self._actions if action.dest == field)
        name = next((strings[-1] for strings in flags if strings), field)
        rest = message.removeprefix(field)
        return f"{name}{rest}" if rest != message else f"{name}: {message}"


def run_command_line(
    prog: str,
    description: str,
    commands: Sequence[Command],
    argv: Sequence[str] | None = None,
    default: str | None = None,
) -> int:
    """Runs one command and returns its exit code. `default` is the command if `argv` starts with an option.

    Only `--help` raises SystemExit. Errors that are not voxport's or the system's are raised as they are.
    """
    parser, if_interrupted = Parser(prog=prog), ""
    set_up_logging()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        parser, command, rest = _choose(
            prog, description, commands, sys.argv[1:] if argv is None else argv, default
        )
        if_interrupted = command.if_interrupted
        module = cast(CommandModule, import_module(command.module))
        parser.description = import_module(command.module).__doc__
        module.add_arguments(parser)
        code = module.run(parser.parse_args(rest))
        sys.stdout.flush()  # inside the try block, because a full disk is reported here
        return code
    except VoxportError as error:
        return _fail(f"error: {parser.with_flag(error)}", error.exit_code)
    except ModuleNotFoundError as error:
        return _fail(f"error: {_missing_module(str(error.name))}", USAGE)
    except BrokenPipeError:  # the reader of stdout has ended
        _discard_stdout()
        return 0
    except (OSError, MemoryError) as error:
        if getattr(error, "filename", None) is None:  # stdout cannot be written
            _discard_stdout()
        reason = system_error(error) if isinstance(error, OSError) else "not enough memory"
        return _fail(f"error: {reason}", FAILED)
    except KeyboardInterrupt:
        return _fail("; ".join(filter(None, ("interrupted", if_interrupted))), INTERRUPTED)


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
    if default and (not argv or argv[0].startswith("-")):
        return Parser(prog=prog, epilog=epilog, formatter_class=layout), table[default], argv
    if argv and argv[0] in table:
        return Parser(prog=f"{prog} {argv[0]}"), table[argv[0]], argv[1:]
    top = Parser(prog, f"{prog} COMMAND ...", description, epilog, formatter_class=layout)
    top.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    found = top.parse_args(argv[:1]).command
    raise UsageError(f"command {found!r} is unknown; expected one of {', '.join(table)}")


def _missing_module(name: str) -> str:
    head = name.partition(".")[0]
    if head in PACKAGES:
        place = getattr(sys.modules.get(head), "__file__", None) or "a folder on the path"
        return f"{place} hides voxport's package {head!r}; rename it, or run from another folder"
    return (
        f"{name} is not installed; install voxport with its extra [export]: "
        "pip install '.[export]' in its folder"
    )


def _fail(message: str, code: int) -> int:
    print(f"voxport: {one_line(message)}", file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Prevents a second error when Python flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def set_up_logging() -> None:
    """Logs to stderr with the seconds since the start: all of voxport, only errors of other packages."""
    start = CLEAR_LINE if sys.stderr.isatty() else ""
    layout = f"{start}%(elapsed)s %(message)s"
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format=layout, force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_add_elapsed)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # torch sets a lower level when imported


def _add_elapsed(record: logging.LogRecord) -> bool:
    record.elapsed = f"[{record.relativeCreated / 1000:6.1f}s]"
    return True


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
