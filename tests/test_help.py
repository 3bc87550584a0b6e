"""Examples in the help of every command, and the versions."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from support.paths import ROOT
from voxport.bundle.command import Command, Parser
from voxport.commands import COMMANDS
from voxport.runtime.commands import COMMANDS as RUNTIME

from voxport.__main__ import main as voxport
from voxport.bundle.versions import version_text
from voxport.export.__main__ import main as export
from voxport.runtime.__main__ import main as runtime


def commands_of_all_packages() -> list[Any]:
    tables = (("voxport", COMMANDS), ("runtime", RUNTIME))
    return [pytest.param(command, id=f"{name} {command.name}") for name, table in tables for command in table]


@pytest.mark.parametrize("command", commands_of_all_packages())
def test_the_example_of_every_command_is_parsed(command: Command) -> None:
    module, parser = import_module(command.module), Parser()
    module.add_arguments(parser)
    assert command.example
    parser.parse_args(shlex.split(command.example))


@pytest.mark.parametrize(
    ("main", "argv", "called"),
    [
        (voxport, ["say", "--help"], "voxport say"),
        (runtime, ["say", "--help"], "python -m runtime say"),
        (voxport, ["trace-eager", "--help"], "voxport trace-eager"),
        (export, ["--help"], "python -m export"),
    ],
)
def test_help_ends_with_an_example_of_the_command_as_it_was_called(
    capsys: pytest.CaptureFixture[str], main: Callable[..., int], argv: list[str], called: str
) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    found = capsys.readouterr().out
    assert f"\nexample:\n  {called} " in found


def test_the_version_has_voxport_and_the_engines_without_importing_them() -> None:
    code = "import sys; from voxport.__main__ import main\n"
    code += "try: main(['--version'])\nexcept SystemExit: print('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    shown, _, modules = done.stdout.partition("MODULES")
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert rows.keys() == {"voxport", "python", "onnxruntime", "executorch", "coremltools", "torch"}
    assert rows["torch"] == torch.__version__ and rows["python"] == platform.python_version()
    assert not {"torch", "numpy", "onnxruntime", "executorch", "coremltools"} & set(modules.split())


def test_a_package_that_is_not_installed_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxport.bundle.versions.ENGINES", ("no-such-engine",))
    assert version_text().splitlines()[-1].split(maxsplit=1) == ["no-such-engine", "not installed"]
