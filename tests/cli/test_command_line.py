"""The command lines: exit codes of errors, lazy imports, flags of fields, options of several families."""

import argparse
import logging
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from pydantic import BaseModel, Field
from support.paths import ROOT

from voxport.__main__ import main as voxport
from voxport.bundle.errors import IntegrityError, UsageError, VerificationError, VoxportError
from voxport.bundle.versions import version_text
from voxport.cli.arguments import Parser, integer
from voxport.cli.checkpoint import add_family_options, given_options
from voxport.cli.main import COMMANDS, Command, run_command_line
from voxport.cli.terminal import set_up_logging
from voxport.export.__main__ import main as export
from voxport.model.__main__ import main as model
from voxport.model.families import options_of
from voxport.runtime.__main__ import main as runtime


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command `work` whose module calls the given function; returns the exit code."""

    def call(
        action: Callable[[argparse.Namespace], int],
        *argv: str,
        add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    ) -> int:
        module = SimpleNamespace(__doc__="Work.", add_arguments=add_arguments, run=action)
        monkeypatch.setitem(sys.modules, "voxport.cli.commands.work", module)
        command = Command("work", "do the work", "", if_interrupted="run it again")
        return run_command_line(("work", *argv), "toy", commands=(command,))

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
            "error: torch.nn is not installed; run pip install 'voxport[export]'",
        ),
        (
            ModuleNotFoundError("no", name="fastapi.routing"),
            2,
            "error: fastapi.routing is not installed; run pip install 'voxport[serve]'",
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
    ("field", "message", "shown"),
    [
        ("max_frames", "max_frames 0: expected at least 1", "--max-frames 0: expected at least 1"),
        ("max_frames", "expected at least 1", "--max-frames: expected at least 1"),
        ("text", "empty", "text: empty"),  # no option
    ],
)
def test_the_field_of_an_error_is_shown_as_its_flag(
    work: Callable[..., int], capsys: pytest.CaptureFixture[str], field: str, message: str, shown: str
) -> None:
    error = UsageError(message, field=field)
    assert str(error) == message
    arguments = {"add_arguments": lambda parser: parser.add_argument("--max-frames")}
    assert work(raise_error(error), **arguments) == 2
    assert capsys.readouterr().err == f"voxport: error: {shown}\n"


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
    said = capsys.readouterr().err
    assert "command 'lst' is unknown; expected one of" in said and "did you mean list?" in said


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        voxport(arguments)
    assert ended.value.code == 0
    assert all(f"  {command.name} " in capsys.readouterr().out for command in COMMANDS[:1])


SHOWS_MODULES = """
import sys
from voxport.__main__ import main
for argv in eval(sys.argv[1]):
    try:
        main(argv)
    except SystemExit:
        pass
print("MODULES", *sys.modules)
"""


@pytest.mark.parametrize(
    ("calls", "absent"),
    [
        ([[]], {"torch", "numpy", "pydantic", "voxport.export", "voxport.cli.commands.export"}),
        ([["--version"]], {"torch", "numpy", "onnxruntime", "executorch", "coremltools", "coreai"}),
        ([["say", "--help"]], {"torch", "numpy", "pydantic", "voxport.export"}),
        ([[command.name, "--help"] for command in COMMANDS], {"torch"}),
    ],
    ids=["commands", "version", "say", "all"],
)
def test_help_imports_only_the_modules_it_needs(calls: list[list[str]], absent: set[str]) -> None:
    command = [sys.executable, "-c", SHOWS_MODULES, repr(calls)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    shown, _, modules = done.stdout.partition("MODULES")
    assert shown.count("usage: ") >= len(calls) - 1 and not absent & set(modules.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_example_of_every_command_is_parsed(command: Command) -> None:
    module, parser = command.load(), Parser()
    module.add_arguments(parser)
    assert command.summary and module.__doc__
    parser.parse_args(shlex.split(command.example))


@pytest.mark.parametrize(
    ("main", "argv", "called"),
    [
        (voxport, ["say", "--help"], "voxport say"),
        (voxport, ["help", "say"], "voxport say"),
        (runtime, ["say", "--help"], "python -m runtime say"),
        (model, ["export", "--help"], "python -m model export"),
        (export, ["--help"], "python -m export"),
    ],
)
def test_help_ends_with_an_example_of_the_command_as_it_was_called(
    capsys: pytest.CaptureFixture[str], main: Callable[..., int], argv: list[str], called: str
) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    found = capsys.readouterr().out
    assert found.startswith(f"usage: {called} ") and f"\nexample:\n  {called} " in found


def test_the_version_has_voxport_and_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        voxport(["--version"])
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows.keys() == {"voxport", "python", "onnxruntime", "executorch", "coremltools", "coreai", "torch"}
    assert rows["coreai"][0].isdigit()  # of the distribution coreai-core
    assert rows["torch"] == torch.__version__ and rows["python"] == platform.python_version()


def test_a_package_that_is_not_installed_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxport.bundle.versions.ENGINES", ("no-such-engine",))
    assert version_text().splitlines()[-1].split(maxsplit=1) == ["no-such-engine", "not installed"]


def test_an_option_of_a_family_is_shown_with_its_values_and_refused_for_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    add_family_options(parser)
    shown = " ".join(parser.format_help().split())
    assert "Qwen3-TTS: " in shown and ", one of standard, six (default: standard)" in shown
    arguments = parser.parse_args(["--streaming"])
    assert given_options(arguments, "voxtral_realtime") == {"streaming": True}
    with pytest.raises(
        UsageError, match="an option of Voxtral-Realtime; this checkpoint is Voxtral-TTS"
    ) as caught:
        given_options(arguments, "voxtral_tts")
    assert caught.value.field == "streaming"


class Second(BaseModel):
    split: Literal["small", "six"] = Field(default="small", description="size of the codec")


def test_two_families_may_have_an_option_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"qwen3_tts": options_of("qwen3_tts"), "voxtral_tts": Second, "voxtral_realtime": BaseModel}
    own["qwen3_asr"] = BaseModel
    monkeypatch.setattr("voxport.cli.checkpoint.options_of", own.__getitem__)
    parser = argparse.ArgumentParser()
    add_family_options(parser)
    shown = " ".join(parser.format_help().split())
    assert "Voxtral-TTS: size of the codec, one of small, six (default: small); Qwen3-TTS: " in shown
    arguments = parser.parse_args(["--split", "six"])
    for family in ("qwen3_tts", "voxtral_tts"):
        assert given_options(arguments, family) == {"split": "six"}


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


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["say", "Hi."], "no output"),
        (["say", "Hi.", "-o", "speech.xyz"], "speech.xyz"),
        (["say", "😀", "-o", "speech.wav"], "nothing to speak"),
        (["say", "Hi.", "-o", "missing/speech.wav"], "missing does not exist"),
        (["transcribe", "talk.wav", "--live"], "--live reads stdin"),
        (
            ["trace", "missing", "--inputs", "i", "-o", "o", "--checkpoint", "c"],
            "--checkpoint: needs --eager",
        ),
    ],
)
def test_wrong_options_are_found_before_a_bundle_is_opened_or_exported(
    argv: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("voxport.cli.arguments.embedded_bundle", lambda task: pytest.fail("exported"))
    assert voxport(argv) == 2
    assert says in capsys.readouterr().err
