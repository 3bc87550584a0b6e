"""The command lines: exit codes of errors, lazy imports, flags of fields, options of several families."""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import soundfile
from pydantic import BaseModel, Field
from support.paths import ROOT
from voxport.bundle.command import Command, integer, run_command_line, set_up_logging
from voxport.commands import COMMANDS
from voxport.export.commands.request import OptionModels, add_family_options, given_options

from voxport.__main__ import main as voxport
from voxport.bundle.errors import IntegrityError, UsageError, VerificationError, VoxportError
from voxport.export.__main__ import main as export
from voxport.model.__main__ import main as model
from voxport.runtime.__main__ import main as runtime


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command `work` whose module calls the given function; returns the exit code."""

    def call(
        action: Callable[[argparse.Namespace], int],
        *argv: str,
        add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
        **options: Any,
    ) -> int:
        module = SimpleNamespace(__doc__="Work.", add_arguments=add_arguments, run=action)
        monkeypatch.setitem(sys.modules, "toy_work", module)
        command = Command("work", "do the work", "toy_work", "run it again")
        return run_command_line("toy", "A toy.", (command,), ("work", *argv), **options)

    return call


def raise_error(error: BaseException) -> Callable[[argparse.Namespace], int]:
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
        (
            ModuleNotFoundError("no", name="fastapi.routing"),
            2,
            "error: fastapi.routing is not installed; install voxport with its extra [serve]: pip install",
        ),
    ],
)
def test_every_error_is_one_line_with_its_exit_code(
    work: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    if isinstance(error, MemoryError):
        vars(error)["filename"] = "memory"  # keeps stdout, which pytest has replaced
    assert work(raise_error(error)) == code
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1
    assert found.err.startswith("voxport: ") and message in found.err


def test_an_error_of_the_program_itself_keeps_its_traceback(work: Callable[..., int]) -> None:
    with pytest.raises(ZeroDivisionError):
        work(raise_error(ZeroDivisionError()))


def test_a_closed_stdout_takes_nothing(work: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python starts with a closed descriptor
    assert work(lambda arguments: print("text") or 0) == 0


def test_an_error_is_the_last_line(work: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """A thread of the command may still run."""
    assert work(raise_error(UsageError("a"))) == 2
    logging.getLogger("voxport.bundle").warning("late")
    assert capsys.readouterr().err == "voxport: error: a\n"


def test_control_characters_of_a_message_do_not_reach_the_terminal(
    work: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def warns(arguments: argparse.Namespace) -> int:
        logging.getLogger("voxport.bundle").warning("a\x1b[31mb\u202ec\r%s\nd", "\x9b")
        return 0

    assert work(warns) == 0
    assert capsys.readouterr().err.partition("] ")[2] == "a [31mb c  \nd\n"


def test_the_exit_code_is_that_of_the_command(work: Callable[..., int]) -> None:
    assert work(lambda arguments: 7) == 7


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Gives the signals of this process back."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("own_signals")
def test_termination_is_an_interruption(work: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    def stop(arguments: argparse.Namespace) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
        return 0

    assert work(stop) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_frames 0: expected at least 1", "--max-frames 0: expected at least 1"),
        ("expected at least 1", "--max-frames: expected at least 1"),
    ],
)
def test_the_field_of_an_error_is_shown_as_its_flag(
    work: Callable[..., int], capsys: pytest.CaptureFixture[str], message: str, shown: str
) -> None:
    error = UsageError(message, field="max_frames")
    assert str(error) == message
    arguments = {"add_arguments": lambda parser: parser.add_argument("--max-frames")}
    assert work(raise_error(error), **arguments) == 2
    assert capsys.readouterr().err == f"voxport: error: {shown}\n"


def test_a_field_without_a_flag_keeps_its_name(
    work: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_wrong_arguments_are_usage_errors(
    work: Callable[..., int], capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=integer(1, 9))

    assert work(lambda arguments: 0, *argv, add_arguments=add_arguments) == 2
    found = capsys.readouterr().err
    assert says in found and "see toy work --help" in found


@pytest.mark.parametrize("main", [runtime, model, voxport, export])
def test_an_unknown_command_lists_the_commands(
    main: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lst"]) == 2
    assert "command 'lst' is unknown; expected one of" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        voxport(arguments)
    assert ended.value.code == 0
    assert all(f"  {command.name} " in capsys.readouterr().out for command in COMMANDS[:1])


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        voxport(["help", "say"])
    assert ended.value.code == 0 and "usage: voxport say" in capsys.readouterr().out
    assert voxport(["help", "sya"]) == 2
    assert "command 'sya' is unknown" in capsys.readouterr().err


def test_voxport_has_every_command() -> None:
    names = {
        "export",
        "verify",
        "evaluate",
        "sweep",
        "list",
        "say",
        "transcribe",
        "voice",
        "codec",
        "convert",
        "voices",
        "serve",
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
            {"torch", "numpy", "pydantic", "voxport.runtime.commands.say", "voxport.export.commands.export"},
        ),
        (["voxport", "say", "--help"], {"torch", "numpy", "pydantic", "voxport.export.commands.export"}),
        (["export", "--help"], {"torch"}),
        (["export", "bench", "--help"], {"torch"}),
        (["model", "synth", "--help"], {"torch"}),
        *((["voxport", command.name, "--help"], {"torch"}) for command in COMMANDS),
    ],
    ids=lambda value: " ".join(sorted(value) if isinstance(value, set) else value),
)
def test_help_imports_only_the_modules_it_needs(argv: list[str], absent: set[str]) -> None:
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


def family_arguments(*argv: str, models: OptionModels | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_family_options(parser, models or {"first": First, "second": Second})
    return parser.parse_args(argv)


def test_two_families_may_have_an_option_of_the_same_name(capsys: pytest.CaptureFixture[str]) -> None:
    models: OptionModels = {"first": First, "second": Second}
    assert given_options(family_arguments("--mode", "exact"), "first", models) == {"mode": "exact"}
    assert given_options(family_arguments("--mode", "exact"), "second", models) == {"mode": "exact"}
    assert given_options(family_arguments(), "first", models) == {}
    with pytest.raises(SystemExit):
        family_arguments("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "first: order of sums, one of fast, exact (default: fast)" in shown
    assert "second: size of the codec, one of small, exact (default: small)" in shown


def test_an_option_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match="an option of first; this checkpoint is second") as caught:
        given_options(family_arguments("--live"), "second", {"first": First, "second": Second})
    assert caught.value.field == "live"


@pytest.mark.parametrize(
    ("flags", "shown"),
    [([], {"info", "warning"}), (["-q"], {"warning"}), (["-v"], {"debug", "info", "warning"})],
)
def test_verbosity(
    work: Callable[..., int], flags: list[str], shown: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: argparse.Namespace) -> int:
        for level in ("debug", "info", "warning"):
            getattr(logging.getLogger("voxport.runtime.x"), level)(level)
        return 0

    assert work(run, *flags) == 0
    assert {line.split()[-1] for line in capsys.readouterr().err.splitlines()} == shown


def test_only_voxport_logs_progress(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    logging.getLogger("voxport.runtime.engines").info("opened")
    logging.getLogger("other").warning("noise")
    assert "opened" in (found := capsys.readouterr().err) and "noise" not in found


@pytest.mark.slow
def test_voxport_and_the_package_are_the_same_command(
    bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for main, name in ((voxport, "a.wav"), (runtime, "b.wav")):
        out = tmp_path / name
        assert main(["say", "Hello.", "--bundle", str(bundles / "onnx"), "-o", str(out), "--json"]) == 0
        results.append({**json.loads(capsys.readouterr().out), "output": None, "elapsed": None})
    assert results[0] == results[1]
    first, second = (soundfile.read(tmp_path / name)[0] for name in ("a.wav", "b.wav"))
    assert np.array_equal(first, second)
