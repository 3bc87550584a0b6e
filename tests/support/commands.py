"""Commands and the errors that they print."""

from runtime.__main__ import main as runtime


def say(bundle, text="Hello.", *more, out="out.wav") -> int:
    return runtime(["say", text, "--bundle", str(bundle), "-o", str(out), *more])


def one_line(capsys) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("voxport: error:")]
    assert len(lines) == 1
    return lines[0]
