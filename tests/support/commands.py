"""Commands and the errors that they print."""

from pathlib import Path

import pytest

from voxport.runtime.__main__ import main as runtime


def say(bundle: Path, text: str = "Hello.", *more: str, out: str | Path = "out.wav") -> int:
    return runtime(["say", text, "--bundle", str(bundle), "-o", str(out), *more])


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line of error that a command printed."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("voxport: error:")]
    assert len(lines) == 1
    return lines[0]
