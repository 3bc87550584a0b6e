"""Runs a command in a forked child with limits of memory and time, and judges how it ended."""

import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MAX_SECONDS, MAX_BYTES = 60.0, 3 * 2**30
ADDRESS_SPACE = 24 * 2**30  # above it a child cannot harm the machine; torch alone maps 8 GB
GOOD_CODES = (0, 2, 3, 5)
UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]|\x1b|[\u202a-\u202e\u2066-\u2069]")
Main = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Command:
    """A call of a command. `output` is a file that it writes, relative to the working folder.

    `file_bytes` bounds the size of each file that the child writes, as a full disk would.
    """

    argv: tuple[str, ...]
    stdin: bytes | None = b""  # None: closed
    output: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    file_bytes: int | None = None


@dataclass(frozen=True)
class Outcome:
    code: int  # negative: the number of the signal
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int


def run(main: Main, command: Command, folder: Path) -> Outcome:
    """Calls `main(argv)` in a child whose working folder is `folder`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as stdin:
        stdin.write(command.stdin or b"")
        stdin.seek(0)
        started = time.monotonic()
        child = os.fork()
        if not child:
            _run_child(main, command, folder, (stdin.fileno(), out.fileno(), err.fileno()))
        status, used = _wait(child, started + MAX_SECONDS)
        seconds = time.monotonic() - started
        text = []
        for file in (out, err):
            file.seek(0)
            text.append(file.read(2**20).decode("utf-8", "replace"))
        code, peak = os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024
        return Outcome(code, text[0], text[1], seconds, peak)


def _run_child(main: Main, command: Command, folder: Path, files: tuple[int, int, int]) -> None:
    code = 1
    try:
        os.setsid()
        for target, source in enumerate(files):
            os.dup2(source, target)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  stays open
            setattr(sys, name, stream)
        if command.stdin is None:
            os.close(0)
            sys.stdin = None  # as Python starts with a closed stdin
        os.chdir(folder)
        os.environ.update(command.environment)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if command.file_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (command.file_bytes, command.file_bytes))
        code = main(command.argv)
        sys.stdout.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        with suppress(BaseException):
            traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)  # nothing of the parent's may run in the child


def _wait(child: int, deadline: float) -> tuple[int, resource.struct_rusage]:
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            return status, used
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
            return status, used
        time.sleep(0.004)


def fault_of(outcome: Outcome, command: Command, folder: Path) -> str | None:
    """What is wrong with the way a command ended; None where nothing is."""
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("voxport: ")]
    written = folder / command.output if command.output else None
    checks = {
        f"took {outcome.seconds:.0f} s": outcome.seconds > MAX_SECONDS,
        f"ended by signal {-outcome.code}": outcome.code < 0,
        f"took {outcome.peak_bytes / 1e9:.1f} GB": outcome.peak_bytes > MAX_BYTES,
        "traceback": "Traceback (most recent call last)" in outcome.stderr,
        f"exit code {outcome.code}": outcome.code not in GOOD_CODES,
        f"{len(errors)} lines of error": outcome.code > 0 and len(errors) != 1,
        "error is not the last line": bool(errors) and outcome.stderr.splitlines()[-1] != errors[-1],
        "line of error is too long": any(len(line) > 2000 for line in errors),
        "control characters in stderr": bool(UNPRINTABLE.search(outcome.stderr)),
        "output of a failed command": bool(written and outcome.code and written.exists()),
        "temporary file is left": any(folder.rglob("*.part")),
    }
    return next((what for what, holds in checks.items() if holds), None)
