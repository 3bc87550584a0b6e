"""Print the script that completes `voxport` in a shell: commands, options, recipes, folders of bundles."""

import argparse
import json
import os
from contextlib import suppress
from glob import escape, glob
from pathlib import Path
from typing import Any

from voxport.cli.arguments import add_verbosity
from voxport.cli.main import COMMANDS

COMPLETERS = {  # by the name of the argument, which is the same in every command
    "bundle": lambda prefix, **given: bundle_folders(prefix),
    "voice": lambda prefix, parsed_args, **given: voices_of_bundle(getattr(parsed_args, "bundle", None)),
}
MAX_BYTES = 2**20  # read of a manifest; manifests of the published models have 0.1 MB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell that runs the script")


def run(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["voxport"], shell=arguments.shell))
    return 0


class _CompletedParser(argparse.ArgumentParser):
    """Its arguments have `COMPLETERS`."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        if action.dest in COMPLETERS:
            action.completer = COMPLETERS[action.dest]  # type: ignore[attr-defined]
        return action


def answer_shell(prog: str) -> None:
    """Prints the completions that a shell asks for, and ends the process.

    Only the module of the command on the line is imported.
    """
    import argcomplete

    top = argparse.ArgumentParser(prog=prog)
    top.add_argument("--version", action="store_true")
    table = top.add_subparsers(parser_class=_CompletedParser)
    words = os.environ.get("COMP_LINE", "").split()
    for command in COMMANDS:
        parser = table.add_parser(command.name, help=command.summary)
        if command.name in words:
            command.load().add_arguments(parser)
            add_verbosity(parser)
    argcomplete.autocomplete(top)


def bundle_folders(prefix: str) -> list[str]:
    """Folders of bundles that begin with `prefix`, and other folders with a slash, which may hold bundles.

    Without a prefix, also the bundles of the default place.
    """
    paths = glob(f"{escape(prefix)}*/") + ([] if prefix else glob("artifacts/*/"))
    return [path[:-1] if os.path.isfile(f"{path}manifest.json") else path for path in sorted(paths)]


def voices_of_bundle(bundle: Path | None) -> list[str]:
    """Names of the voices of the bundle that the line names before; none if it names no bundle."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        path = Path(bundle or "", "manifest.json")
        if bundle and path.is_file():  # opening a pipe would wait for ever
            with path.open("rb") as file:
                manifest = json.loads(file.read(MAX_BYTES))
            return [name for name in manifest.get("voices", {}) if name.isprintable()]
    return []
