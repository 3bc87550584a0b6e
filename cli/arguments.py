"""The parser, and the arguments that several commands have."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.files import check_apart, check_writable
from voxport.bundle.names import HUB_FORM, HubName, did_you_mean
from voxport.runtime.engines import ENGINE_OPTIONS

if TYPE_CHECKING:
    from voxport.runtime.engines.base import EngineOptions

CHECKPOINTS = "checkpoint", "folder"  # names of the arguments that are checkpoints
FILES = "output", "report"  # names of the arguments that are files to write
FOLDERS = "voices", "transcripts"  # those that may be folders
STDOUT = Path("-")  # as an output of a command that sets `takes_stdout`
TEXTS = "sources", "transcripts"  # names of arguments that are paths as str
BUNDLE_HELP = f"folder of the bundle, or its name in the hub, {HUB_FORM}"
FLAGS = {"rules": "--quant-rule", "check_hashes": "--no-check"}  # the option, if its name is not the field
Task = TypeVar("Task")
log = logging.getLogger(__name__)


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"^unrecognized arguments:.*?(--[\w-]+)", message)
        known = re.findall(r"--[\w-]+", self.format_usage())
        close = did_you_mean(unknown[1], known) if unknown else ""
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help{close}")

    def with_flag(self, error: VoxportError) -> str:
        """The message of `error`, with the option's flag in place of the field's name."""
        message, field = str(error), error.field
        if field is None:
            return message
        separator = "" if message.startswith(field) else ": "
        flag = FLAGS.get(field, f"--{field.replace('_', '-')}")
        is_option = re.search(rf"^  (-\w\b.*)?{flag}(?![\w-])", self.format_help(), re.MULTILINE)
        return f"{flag if is_option else field}{separator}{message.removeprefix(field)}"


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raises UsageError on an output that cannot be written, is inside of a bundle, or is also read."""
    values = {name: value if isinstance(value, list) else [value] for name, value in vars(arguments).items()}
    paths = {
        name: [Path(each) for each in found if isinstance(each, Path) or (name in TEXTS and each)]
        for name, found in values.items()
    }
    inputs = [path for name, found in paths.items() if name not in FILES + FOLDERS for path in found]
    for name in FILES + FOLDERS:
        for output in paths.get(name, []):
            if output == STDOUT:
                if "takes_stdout" not in arguments:
                    raise UsageError(f"{name} -: is not stdout here; give another name", field=name)
                continue
            check_apart(output, name, paths.get("bundle", []), inputs)
            if name in FILES:
                check_writable(output)


def folder(text: str) -> Path | HubName:
    """A type of an argument: a folder of a bundle or checkpoint, or the name of one in the hub."""
    return HubName.parse(text) or Path(text)


def fetch_named(arguments: argparse.Namespace) -> None:
    """Puts folders in place of the names of the hub. Raises VoxportError."""
    for field, value in vars(arguments).items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(each, HubName) for each in values):
            found = [
                _fetched(each, field, arguments) if isinstance(each, HubName) else each for each in values
            ]
            setattr(arguments, field, found if isinstance(value, list) else found[0])


def _fetched(name: HubName, field: str, arguments: argparse.Namespace) -> Path:
    set_up_hub_client(name)
    from voxport.cli.hub import fetch_adapter, fetch_bundle, fetch_checkpoint

    if field == "adapter":
        return fetch_adapter(name)
    return fetch_checkpoint(name, arguments.weights) if field in CHECKPOINTS else fetch_bundle(name)


def set_up_hub_client(name: HubName) -> None:
    """To be called before `cli.hub` is imported. Raises UsageError if the client of the hub is missing."""
    if find_spec("huggingface_hub") is None:
        revision = f" --revision {name.revision}" if name.revision else ""
        command = f"hf download {name.repository}{revision} --local-dir {name.repository.split('/')[1]}"
        reason = "no such folder; as a name of the hub, it needs a package that is not installed"
        advice = f"run pip install 'voxport[hub]', or fetch a folder with: {command}"
        raise UsageError(f"{name}: {reason}; {advice}")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # what it warns of is a line or an error of ours
    if not (log.isEnabledFor(logging.INFO) and sys.stderr.isatty()):
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


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


def complete_values(action: argparse.Action, values: Iterable[str], separator: str | None = None) -> None:
    """Completes the argument of `action` to one of `values`, or to several of them with a separator."""
    names = tuple(values)

    def completer(prefix: str, **given: object) -> list[str]:
        before = prefix[: prefix.rfind(separator) + 1] if separator else ""
        return [before + name for name in names]

    action.completer = completer  # type: ignore[attr-defined]  # argcomplete looks for it there


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


def add_json(parser: argparse.ArgumentParser, result: str = "the result") -> None:
    parser.add_argument("--json", action="store_true", help=f"print {result} as JSON on stdout")


def add_bundle(parser: argparse.ArgumentParser, default: str = "") -> None:
    """`default` says which bundle is used if none is given."""
    text = f"{BUNDLE_HELP}{f' (default: {default})' if default else ''}"
    parser.add_argument("bundle", type=folder, nargs="?" if default else None, help=text)


def add_output(parser: argparse.ArgumentParser, metavar: str, purpose: str, required: bool = False) -> None:
    parser.add_argument("-o", "--output", type=Path, required=required, metavar=metavar, help=purpose)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=integer(1),
        metavar="N",
        help="number of threads the engine uses (default: all cores, or 1 for a small model)",
    )
    add_engine_options(parser)


def add_engine_options(parser: argparse.ArgumentParser, **defaults: str) -> None:
    """Arguments of `ENGINE_OPTIONS`. `defaults` say what a command does without one, if it differs."""
    for name, option in ENGINE_OPTIONS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            choices=option.choices,
            help=f"{option.help} (default: {defaults.get(name, option.default)})",
        )


def engine_options(arguments: argparse.Namespace) -> EngineOptions:
    """`threads` is None for a command without that argument."""
    from voxport.runtime.engines.base import EngineOptions  # imports numpy

    chosen = {name: getattr(arguments, name) for name in ENGINE_OPTIONS}
    return EngineOptions(getattr(arguments, "threads", None), **chosen)


def add_task_arguments(
    parser: argparse.ArgumentParser, default: str | None = None, required: bool = True
) -> None:
    """Arguments of the commands that run a task. `default` says which bundle runs if none is given."""
    exported = f" (default: {default}; a clone exports it on first use, for minutes)" if default else ""
    parser.add_argument(
        "--bundle",
        type=folder,
        required=required and not default,
        metavar="DIR",
        help=f"{BUNDLE_HELP}{exported}",
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="skip the comparison of the bundle's files with their hashes, which reads each of them once",
    )
    add_engine_arguments(parser)


def open_task(task: type[Task], arguments: argparse.Namespace) -> Task:
    """The task of the given bundle, or of the embedded model. Raises UsageError or IntegrityError."""
    from voxport.runtime import opening

    bundle = arguments.bundle or embedded_bundle(task)
    return opening.open_task(task, bundle, engine_options(arguments), not arguments.no_check)


def embedded_bundle(task: type[object]) -> Path:
    """The bundle of the embedded model for a task of `runtime`: the installed one, or exported on first use.

    In a clone, an installed one may be older than the code. Raises UsageError if neither is possible.
    """
    from voxport.runtime.opening import IS_CLONE, packaged_bundle

    if not IS_CLONE and (folder := packaged_bundle(task)):
        return folder
    if find_spec("torch") is None:
        raise UsageError(
            "bundle: the embedded model is not installed, and its export needs torch; "
            "give the folder of a bundle, or install a wheel of voxport or the extra [export]",
            field="bundle",
        )
    from voxport.export.embedded_bundle import embedded_bundle as find
    from voxport.model.embedded import embedded_default
    from voxport.model.families import DEFAULT_OF_TASK
    from voxport.runtime.families import open_family

    family = next(name for name in DEFAULT_OF_TASK.values() if issubclass(open_family(name).task, task))
    with redirect_stdout(sys.stderr):  # stdout carries the result of the command
        return find(family, embedded_default(family))
