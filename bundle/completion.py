"""Completion of command lines in bash, zsh and fish, by argcomplete."""

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from glob import escape, glob
from importlib import import_module
from pathlib import Path

from voxport.bundle.command import Command, add_verbosity

BUNDLE = "bundle"  # the name of every argument that is the folder of a bundle
VOICE = "voice"  # the name of every argument that is a voice of that bundle
MAX_BYTES = 2**20  # that are read of a manifest; those of the published models have 0.1 MB


def answer_shell(prog: str, commands: Sequence[Command]) -> None:
    """Prints completions and ends the process, if a shell asks for them. Does nothing otherwise.

    Only the module of the command on the line is imported.
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    top = argparse.ArgumentParser(prog=prog)
    top.add_argument("--version", action="store_true")
    table, words = top.add_subparsers(), os.environ.get("COMP_LINE", "").split()
    for command in commands:
        parser = table.add_parser(command.name, help=command.summary)
        if command.name in words:
            import_module(command.module).add_arguments(parser)
            add_verbosity(parser)
        for action in parser._actions:
            if action.dest == BUNDLE:
                _set_completer(action, bundle_folders)
            if action.dest == VOICE:
                _set_completer(action, voices_of_bundle)
    argcomplete.autocomplete(top)


def complete_values(action: argparse.Action, values: Iterable[str], separator: str | None = None) -> None:
    """Completes the argument of `action` to one of `values`, or to several of them with a separator."""
    names = tuple(values)

    def completer(prefix: str, **given: object) -> list[str]:
        before = prefix[: prefix.rfind(separator) + 1] if separator else ""
        return [before + name for name in names]

    _set_completer(action, completer)


def bundle_folders(prefix: str, **given: object) -> list[str]:
    """Folders of bundles that begin with `prefix`, and other folders with a slash, which may hold bundles.

    Without a prefix, also the bundles of the default place.
    """
    paths = glob(f"{escape(prefix)}*/") + ([] if prefix else glob("artifacts/*/"))
    return [path[:-1] if os.path.isfile(f"{path}manifest.json") else path for path in sorted(paths)]


def voices_of_bundle(prefix: str, parsed_args: argparse.Namespace, **given: object) -> list[str]:
    """Names of the voices of the bundle that the line names before; none where it names no bundle."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        path = Path(getattr(parsed_args, BUNDLE), "manifest.json")
        if path.is_file():  # opening a pipe would wait for ever
            with path.open("rb") as file:
                manifest = json.loads(file.read(MAX_BYTES))
            return [name for name in manifest.get("voices", {}) if name.isprintable()]
    return []


def _set_completer(action: argparse.Action, completer: object) -> None:
    action.completer = completer  # type: ignore[attr-defined]  # where argcomplete looks for it
