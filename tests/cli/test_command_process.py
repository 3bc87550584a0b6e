"""Commands as processes: interruptions, and an output that is closed or full."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

TOY = """
import sys, time, types
from voxport.cli.main import run_command_line
from voxport.cli.main import Command
{run}
sys.modules["voxport.cli.commands.work"] = types.SimpleNamespace(
    __doc__="", add_arguments=lambda parser: None, run=run
)
code = run_command_line(["work"], "toy", commands=[Command("work", "", "")])
time.sleep({wait})
sys.exit(code)
"""
CLEANS_UP = """
def run(arguments):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep(1)
        print("clean", flush=True)
"""
INTERRUPTED_IMPORT = """
def run(arguments):
    try:
        print("importing", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:  # as NumPy and ONNX Runtime do
        raise ImportError("initialization failed")
"""
TRANSLATED = """
from voxport.bundle.errors import VoxportError
def run(arguments):
    try:
        print("importing", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        raise VoxportError("the hub is not reached")  # from the error that a client made of it
"""
PRINTS = 'run = lambda arguments: print("line\\n" * 100_000) or 0'


def toy(run: str, wait: float = 0.0) -> list[str]:
    """A process with one command, whose function is `run`. It waits before it ends."""
    return [sys.executable, "-c", TOY.format(run=run, wait=wait)]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interruption_does_not_stop_the_clean_up(second: signal.Signals) -> None:
    process = subprocess.Popen(
        toy(CLEANS_UP, wait=0.5),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout and process.stderr
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    process.send_signal(second)
    assert process.stdout.readline() == "clean\n"
    assert process.stderr.readline() == "voxport: interrupted\n"
    process.send_signal(second)  # while the interpreter ends
    assert process.wait(60) in (130, -second)
    assert not process.stderr.read()


@pytest.mark.parametrize(
    ("run", "says"), [(INTERRUPTED_IMPORT, ""), (TRANSLATED, "the hub is not reached\n")]
)
def test_an_interruption_that_a_library_turns_into_another_error_is_an_interruption(
    run: str, says: str
) -> None:
    process = subprocess.Popen(toy(run), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr.read().partition("] ")[2 if says else 0] == f"{says}voxport: interrupted\n"


SLOW_IMPORT = """
import time
print("importing", flush=True)
time.sleep(60)
"""
SCRIPT = "import sys\nfrom voxport.__main__ import main\nsys.exit(main())"  # as pip installs it


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "voxport"),
        ("-c", SCRIPT),
        ("-m", "voxport.runtime"),
        ("-m", "voxport.export"),
        ("-m", "voxport.model"),
    ],
    ids=["voxport", "script", "runtime", "export", "model"],
)
def test_an_interruption_while_modules_are_imported_prints_no_traceback(
    tmp_path: Path, command: tuple[str, str]
) -> None:
    (tmp_path / "argparse.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join((str(tmp_path), str(ROOT / "src")))
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stderr
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT
    assert not process.stderr.read()


def test_a_closed_stdout_is_not_an_error() -> None:
    process = subprocess.Popen(toy(PRINTS), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(30) == 0


def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(toy(PRINTS), cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and done.stderr == "voxport: error: No space left on device\n"
