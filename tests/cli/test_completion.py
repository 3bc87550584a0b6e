"""Completion in shells: what is offered, which modules that imports, and the scripts in real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from voxport.__main__ import main as voxport
from voxport.cli.commands.completion import bundle_folders
from voxport.export.targets import TARGETS
from voxport.model.families import FAMILIES, public_name
from voxport.quantize.recipe import RECIPES

SHOWS_MODULES = """
import os, sys
end = os._exit
def leave(code):
    open(sys.argv[1], "w").write(" ".join(sys.modules))
    end(code)
os._exit = leave
from voxport.__main__ import main
main([])
"""


def asked(line: str, answer: Path) -> dict[str, str]:
    """The variables by which a shell asks for what is behind `line`."""
    return {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }


def completions(line: str, folder: Path) -> list[str]:
    """What `voxport` offers behind `line`. Its process ends with the answer."""
    answer = folder / "answer"
    process = os.fork()
    if not process:
        os.chdir(folder)
        os.environ.update(asked(line, answer))
        try:
            voxport([])
        finally:
            os._exit(1)
    assert os.waitpid(process, 0)[1] == 0
    return answer.read_text().split("\n") if answer.read_text() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two bundles, one of them in the default place, two damaged ones, and another folder."""
    for name in ("artifacts/one", "two", "two.other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("artifacts/one", "two"):
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "two.other" / "deep").mkdir(parents=True)
    (tmp_path / "two.other" / "deep" / "manifest.json").write_text("[" * 100_000)
    (tmp_path / "two.other" / "pipe").mkdir()
    os.mkfifo(tmp_path / "two.other" / "pipe" / "manifest.json")
    (tmp_path / "two" / "manifest.json").write_text('{"voices": {"cheerful": {}, "casual": {}}}')
    return tmp_path


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("voxport trac", ["trace"]),
        ("voxport export --model ", list(map(public_name, FAMILIES))),
        ("voxport export --target ", list(TARGETS)),
        ("voxport export --target onnx,exec", ["onnx,executorch"]),
        ("voxport export --quant w4", [name for name in RECIPES if name.startswith("w4")]),
        ("voxport export --first-f", ["--first-frame"]),
        ("voxport list --verb", ["--verbose"]),
        ("voxport synth out --model voxtral-r", ["voxtral-realtime"]),
        ("voxport say Hello --bundle tw", ["two", "two.other/"]),
        ("voxport info artifacts/", ["artifacts/one"]),
        ("voxport say Hello --bundle two --voice c", ["cheerful", "casual"]),
        ("voxport say Hello --bundle artifacts/one --voice ", []),
        ("voxport say Hello --bundle missing --voice ", []),
        ("voxport say Hello --bundle two.other/deep --voice ", []),
        ("voxport say Hello --bundle two.other/pipe --voice ", []),
        ("voxport info two.other/", ["two.other/deep", "two.other/pipe/"]),
        ("voxport transcribe a.wav --format s", ["srt"]),
        ("voxport completion f", ["fish"]),
        ("voxport cod", ["codec"]),
        ("voxport codec e", ["encode"]),
        ("voxport codec decode codes.npz out.wav --bundle tw", ["two", "two.other/"]),
        ("voxport say Hello --sub-", ["--sub-temperature", "--sub-top-k", "--sub-top-p"]),
    ],
)
def test_a_shell_is_offered(folder: Path, line: str, offered: list[str]) -> None:
    assert set(completions(line, folder)) - {"-h", "--help"} == set(offered)


def test_folders_of_bundles_come_without_a_slash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert bundle_folders("") == ["artifacts/", "artifacts/one", "two.other/", "two"]
    assert bundle_folders("[") == []


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("voxport ", {"torch", "numpy", "pydantic", "voxport.cli.commands.export"}),
        ("voxport export --quant ", {"torch", "onnxruntime", "voxport.cli.commands.say"}),
        ("voxport say Hello --bundle ", {"torch", "numpy", "pydantic", "voxport.cli.commands.export"}),
    ],
)
def test_an_answer_imports_only_the_modules_it_needs(
    folder: Path, tmp_path: Path, line: str, absent: set[str]
) -> None:
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | asked(line, tmp_path / "answer") | {"PYTHONPATH": path}
    command = [sys.executable, "-c", SHOWS_MODULES, str(tmp_path / "modules")]
    subprocess.run(command, env=environment, cwd=folder, check=True, timeout=60)
    assert (tmp_path / "answer").read_text()
    found = (tmp_path / "modules").read_text().split()
    assert "argcomplete" in found and not absent & set(found)


IN_SHELL = {
    "bash": """
        source <(voxport completion bash)
        COMP_WORDS=(voxport export --quant w4) COMP_CWORD=3 COMP_LINE="voxport export --quant w4"
        COMP_POINT=${#COMP_LINE} COMP_TYPE=9
        _python_argcomplete voxport; echo "${COMPREPLY[@]}"
    """,
    "zsh": """
        autoload -Uz compinit && compinit -u -D
        source <(voxport completion zsh)
        compadd() { :; }; _describe() { print -- "${(P)4}" "${(P)2}"; }
        print -- ${_comps[voxport]}
    """,
    "fish": """
        voxport completion fish | source
        complete --do-complete "voxport export --quant w4"
    """,
}


@pytest.mark.parametrize("shell", IN_SHELL)
def test_the_script_works_in_the_shell(tmp_path: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "voxport"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m voxport "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": path,
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [shell, "-c", IN_SHELL[shell]], env=environment, capture_output=True, text=True, timeout=60
    )
    expected = {"_python_argcomplete"} if shell == "zsh" else {"w4", "w4g128"}
    assert expected <= set(done.stdout.split()), done.stderr
