"""The command lines: exit codes of errors, lazy imports, flags of fields, options of several families."""

import argparse
import json
import logging
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import soundfile
from pydantic import BaseModel, Field

from bundle.command import Command, integer, run_command_line, set_up_logging
from bundle.errors import IntegrityError, UsageError, VerificationError, VoxportError
from export.__main__ import main as export
from export.commands.request import add_family_options, given_options
from model.__main__ import main as model
from runtime.__main__ import main as runtime
from voxport.__main__ import main as voxport
from voxport.commands import COMMANDS

ROOT = Path(__file__).parent.parent


@pytest.fixture
def work(monkeypatch):
    """Runs a command `work` whose module calls the given function; returns the exit code."""

    def call(action, *argv: str, add_arguments=lambda parser: None, **options) -> int:
        module = SimpleNamespace(__doc__="Work.", add_arguments=add_arguments, run=action)
        monkeypatch.setitem(sys.modules, "toy_work", module)
        command = Command("work", "do the work", "toy_work", "run it again")
        return run_command_line("toy", "A toy.", (command,), ("work", *argv), **options)

    return call


def raise_error(error: BaseException):
    def action(arguments: argparse.Namespace) -> int:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("a"), 2, "error: a"),
        (VoxportError("a\nb"), 3, "error: a b"),
        (VerificationError("a"), 4, "error: a"),
        (IntegrityError("a"), 5, "error: a"),
        (KeyboardInterrupt(), 130, "interrupted; run it again"),
        (
            FileNotFoundError(2, "No such file or directory", "x.wav"),
            3,
            "error: x.wav: No such file or directory",
        ),
        (MemoryError(), 3, "error: not enough memory"),
        (
            ModuleNotFoundError("no", name="torch.nn"),
            2,
            "error: torch.nn is not installed; install voxport with its",
        ),
        (ModuleNotFoundError("no", name="model.families"), 2, "hides voxport's package 'model'"),
    ],
)
def test_every_error_is_one_line_with_its_exit_code(work, capsys, error, code, message):
    if isinstance(error, MemoryError):
        error.filename = "memory"  # keeps stdout, which pytest has replaced
    assert work(raise_error(error)) == code
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1
    assert found.err.startswith("voxport: ") and message in found.err


def test_an_error_of_the_program_itself_keeps_its_traceback(work):
    with pytest.raises(ZeroDivisionError):
        work(raise_error(ZeroDivisionError()))


def test_a_closed_stdout_takes_nothing(work, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as Python starts with a closed descriptor
    assert work(lambda arguments: print("text") or 0) == 0


def test_an_error_is_the_last_line(work, capsys):
    """A thread of the command may still run."""
    assert work(raise_error(UsageError("a"))) == 2
    logging.getLogger("bundle").warning("late")
    assert capsys.readouterr().err == "voxport: error: a\n"


def test_control_characters_of_a_message_do_not_reach_the_terminal(work, capsys):
    def warns(arguments: argparse.Namespace) -> int:
        logging.getLogger("bundle").warning("a\x1b[31mb\u202ec\r%s\nd", "\x9b")
        return 0

    assert work(warns) == 0
    assert capsys.readouterr().err.partition("] ")[2] == "a [31mb c  \nd\n"


def test_the_exit_code_is_that_of_the_command(work):
    assert work(lambda arguments: 7) == 7


@pytest.fixture
def own_signals():
    """Gives the signals of this process back."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("own_signals")
def test_termination_is_an_interruption(work, capsys):
    assert work(lambda arguments: os.kill(os.getpid(), signal.SIGTERM) or signal.pause()) == 130
    assert "interrupted" in capsys.readouterr().err


CLEANS_UP = """
import sys, time, types
from bundle.command import Command, run_command_line
def run(arguments):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep(1)
        print("clean", flush=True)
sys.modules["toy_work"] = types.SimpleNamespace(__doc__="", add_arguments=lambda parser: None, run=run)
code = run_command_line("toy", "A toy.", (Command("work", "", "toy_work"),), ["work"])
time.sleep(0.5)
sys.exit(code)
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interruption_does_not_stop_the_clean_up(second):
    command = [sys.executable, "-c", CLEANS_UP]
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
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


SLOW_IMPORT = """
import time
print("importing", flush=True)
time.sleep(60)
"""
SCRIPT = "import sys\nfrom voxport.__main__ import main\nsys.exit(main())"  # as pip installs it


@pytest.mark.parametrize(
    "command",
    [("-m", "voxport"), ("-c", SCRIPT), ("-m", "runtime"), ("-m", "export"), ("-m", "model")],
    ids=["voxport", "script", "runtime", "export", "model"],
)
def test_an_interruption_while_modules_are_imported_prints_no_traceback(tmp_path, command):
    (tmp_path / "argparse.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
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


PRINTS = """
import sys, types
from bundle.command import Command, run_command_line
run = lambda arguments: print("line\\n" * 100_000) or 0
sys.modules["toy_work"] = types.SimpleNamespace(__doc__="", add_arguments=lambda parser: None, run=run)
sys.exit(run_command_line("toy", "A toy.", (Command("work", "", "toy_work"),), ["work"]))
"""


def test_a_closed_stdout_is_not_an_error():
    command = [sys.executable, "-c", PRINTS]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(30) == 0


def test_a_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", PRINTS]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and done.stderr == "voxport: error: No space left on device\n"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_frames 0: expected at least 1", "--max-frames 0: expected at least 1"),
        ("expected at least 1", "--max-frames: expected at least 1"),
    ],
)
def test_the_field_of_an_error_is_shown_as_its_flag(work, capsys, message, shown):
    error = UsageError(message, field="max_frames")
    assert str(error) == message
    arguments = {"add_arguments": lambda parser: parser.add_argument("--max-frames")}
    assert work(raise_error(error), **arguments) == 2
    assert capsys.readouterr().err == f"voxport: error: {shown}\n"


def test_a_field_without_a_flag_keeps_its_name(work, capsys):
    assert work(raise_error(UsageError("empty", field="text"))) == 2
    assert capsys.readouterr().err == "voxport: error: text: empty\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--count", "0"], "--count: expected 1 to 9, found 0"),
        (["--count", "x"], "--count: expected an integer, found 'x'"),
        (["--other"], "unrecognized arguments: --other"),
    ],
)
def test_wrong_arguments_are_usage_errors(work, capsys, argv, says):
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=integer(1, 9))

    assert work(lambda arguments: 0, *argv, add_arguments=add_arguments) == 2
    found = capsys.readouterr().err
    assert says in found and "see toy work --help" in found


@pytest.mark.parametrize("main", [runtime, model, voxport, export])
def test_an_unknown_command_lists_the_commands(main, capsys):
    assert main(["lst"]) == 2
    assert "command 'lst' is unknown; expected one of" in capsys.readouterr().err


def test_voxport_has_every_command():
    names = {
        "export",
        "verify",
        "list",
        "say",
        "transcribe",
        "voice",
        "codec",
        "convert",
        "voices",
        "serve",
        "triton",
        "info",
        "bench",
        "trace",
        "inspect",
        "synth",
        "mil",
        "completion",
    }
    assert names == {command.name for command in COMMANDS} - {"trace-eager"}
    assert all(command.summary for command in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "absent"),
    [
        (
            ["voxport", "--help"],
            {"torch", "numpy", "pydantic", "runtime.commands.say", "export.commands.export"},
        ),
        (["voxport", "say", "--help"], {"torch", "numpy", "pydantic", "export.commands.export"}),
        (["export", "--help"], {"torch"}),
        (["export", "bench", "--help"], {"torch"}),
        (["model", "synth", "--help"], {"torch"}),
        *((["voxport", command.name, "--help"], {"torch"}) for command in COMMANDS),
    ],
    ids=lambda value: " ".join(sorted(value) if isinstance(value, set) else value),
)
def test_help_imports_only_the_modules_it_needs(argv, absent):
    code = (
        f"import sys; from {argv[0]}.__main__ import main\n"
        f"try: main({argv[1:]})\nexcept SystemExit: print('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    shown, _, modules = done.stdout.partition("MODULES")
    assert shown.startswith("usage: ") and not absent & set(modules.split())


class First(BaseModel):
    mode: Literal["fast", "exact"] = Field(default="fast", description="order of sums")
    live: bool = Field(default=False, description="a bundle for live sound")


class Second(BaseModel):
    mode: Literal["small", "exact"] = Field(default="small", description="size of the codec")


def family_arguments(*argv: str, models=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_family_options(parser, models or {"first": First, "second": Second})
    return parser.parse_args(argv)


def test_two_families_may_have_an_option_of_the_same_name(capsys):
    models = {"first": First, "second": Second}
    assert given_options(family_arguments("--mode", "exact"), "first", models) == {"mode": "exact"}
    assert given_options(family_arguments("--mode", "exact"), "second", models) == {"mode": "exact"}
    assert given_options(family_arguments(), "first", models) == {}
    with pytest.raises(SystemExit):
        family_arguments("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "first: order of sums, one of fast, exact (default: fast)" in shown
    assert "second: size of the codec, one of small, exact (default: small)" in shown


def test_an_option_of_another_family_is_refused():
    with pytest.raises(UsageError, match="an option of first; this checkpoint is second") as caught:
        given_options(family_arguments("--live"), "second", {"first": First, "second": Second})
    assert caught.value.field == "live"


PROGRESS = """
import logging, sys, time
from bundle.command import set_up_logging
from bundle.progress import Progress, advance
set_up_logging(int(sys.argv[1]))
with Progress(10.0, "MB") as progress:
    progress._shown -= 60  # as if the work had begun a minute ago
    progress.update(5.0, "half")
    time.sleep(0.3)
    logging.getLogger("bundle").info("a line")
    with Progress(3.0, "steps"):
        advance(2.0, "inner")
    time.sleep(0.3)
"""


def progress_on_a_terminal(level: int) -> str:
    """What a process with a terminal of 80 columns as its stderr writes there."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", PROGRESS, str(level)], stderr=terminal, env=environment)
    os.close(terminal)
    written = b""
    with suppress(OSError):  # the terminal is closed when the process ends
        while block := os.read(controller, 4096):
            written += block
    os.close(controller)
    assert process.wait() == 0
    return written.decode()


def test_progress_on_a_terminal_is_a_bar_below_the_lines():
    found = progress_on_a_terminal(logging.INFO)
    assert "\u2501" in found and "half" in found and "inner" in found
    assert "5/10 MB" in found and "7/10 MB" in found and "0:00:0" in found
    line = next(line for line in found.splitlines() if "a line" in line)
    assert line.rstrip().endswith("a line") and "\u2501" not in line.split("a line")[1]
    assert found.rstrip("\r\n").endswith("\x1b[2K") or found.rstrip().endswith(
        "\x1b[?25h"
    )  # removed at the end


def test_a_quiet_command_has_no_bar():
    assert progress_on_a_terminal(logging.WARNING) == ""


def test_progress_is_a_line_where_there_is_no_terminal():
    done = subprocess.run(
        [sys.executable, "-c", PROGRESS, str(logging.INFO)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split("] ")[1] for line in done.stderr.splitlines()] == ["half", "a line"]


@pytest.mark.parametrize(
    ("flags", "shown"),
    [([], {"info", "warning"}), (["-q"], {"warning"}), (["-v"], {"debug", "info", "warning"})],
)
def test_verbosity(work, flags, shown, capsys):
    def run(arguments):
        for level in ("debug", "info", "warning"):
            getattr(logging.getLogger("runtime.x"), level)(level)
        return 0

    assert work(run, *flags) == 0
    assert {line.split()[-1] for line in capsys.readouterr().err.splitlines()} == shown


def test_only_voxport_logs_progress(capsys):
    set_up_logging()
    logging.getLogger("runtime.engines").info("opened")
    logging.getLogger("other").warning("noise")
    assert "opened" in (found := capsys.readouterr().err) and "noise" not in found


@pytest.mark.slow
def test_voxport_and_the_package_are_the_same_command(bundles, tmp_path, capsys):
    results = []
    for main, name in ((voxport, "a.wav"), (runtime, "b.wav")):
        out = tmp_path / name
        assert main(["say", "Hello.", "--bundle", str(bundles / "onnx"), "-o", str(out), "--json"]) == 0
        results.append({**json.loads(capsys.readouterr().out), "output": None, "elapsed": None})
    assert results[0] == results[1]
    first, second = (soundfile.read(tmp_path / name)[0] for name in ("a.wav", "b.wav"))
    assert np.array_equal(first, second)
