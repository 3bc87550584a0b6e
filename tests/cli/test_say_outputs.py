"""`say`: speech that is played, written to stdout, or faster."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from support.commands import error_line

from voxport.runtime.__main__ import main as runtime

PLAYER = "#!/bin/sh\ncp \"$2\" played.wav\n[ ! -e broken ] || { echo 'no sound card' >&2; exit 1; }\n"


@pytest.fixture
def speak(
    bundles: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """A `say` command, in an empty folder, on a machine without a player."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    broken = tmp_path_factory.mktemp("packages") / "sounddevice.py"  # as without a sound card; not imported
    broken.write_text("raise RuntimeError('PortAudio')")
    monkeypatch.syspath_prepend(broken.parent)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    return ["say", "Hello.", "--bundle", str(bundles / "onnx"), "--max-frames", "4"]


def with_player(folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "aplay").write_text(
        PLAYER.replace("cp", shutil.which("cp", path="/bin:/usr/bin") or "")
    )
    (folder / "bin" / "aplay").chmod(0o755)


def test_without_an_output_speech_is_played(
    speak: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_player(tmp_path)
    assert runtime([*speak, "-o", "asked.wav"]) == 0 and runtime(speak) == 0
    assert (tmp_path / "played.wav").read_bytes() == (tmp_path / "asked.wav").read_bytes()
    assert capsys.readouterr().out == "asked.wav\n"
    (tmp_path / "broken").touch()
    assert runtime(speak) == 3
    assert "aplay cannot play: no sound card; write a file with -o hello.wav" in error_line(capsys)


def test_without_a_player_a_file_is_asked_for_before_the_bundle_is_opened(
    speak: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert runtime(["say", "Hello.", "--bundle", "missing"]) == 2
    line = error_line(capsys)
    assert "no player was found on this machine; write a file with -o hello.wav" in line and "afplay" in line


def test_a_wav_goes_to_stdout(
    speak: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert runtime([*speak, "-o", "-"]) == 0
    written, rate = soundfile.read(io.BytesIO(capfdbinary.readouterr().out))
    assert len(written) == 4 * 0.08 * rate and not list(tmp_path.iterdir())


def test_each_line_is_spoken_when_it_ends(bundles: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The pipe stays open until the line was heard. A line without a word is left out.

    Another script is an error as soon as most of the letters are its own.
    """
    command = ["say", "--stream", "--bundle", str(bundles / "onnx")]
    lengths, pipe = [], subprocess.PIPE
    for text in ("Hi.", "Yes"):
        assert runtime([*command, text]) == 0
        lengths.append(len(capfdbinary.readouterr().out))
    process = subprocess.Popen(
        [sys.executable, "-m", "voxport", *command, "--lines", "-"], stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin and process.stdout
    pause = round(0.2 * 24000) * 2
    for typed, size in ((b"Hi.\n", lengths[0]), (b"...\n\nYes\n", pause + lengths[1])):
        process.stdin.write(typed)
        process.stdin.flush()
        assert len(process.stdout.read(size)) == size
    out, said = process.communicate("你好世界你好世界\n".encode(), timeout=60)
    assert (out, process.returncode) == (b"", 2) and b"a script that the model does not speak" in said


@pytest.mark.parametrize(("speed", "seconds"), [("2", 0.16), ("0.5", 0.64)])
def test_speed_changes_the_length(speak: list[str], speed: str, seconds: float) -> None:
    assert runtime([*speak, "--speed", speed, "-o", "out.opus"]) == 0
    found = soundfile.info("out.opus")
    assert (found.format, found.subtype) == ("OGG", "OPUS") and abs(found.duration - seconds) < 0.03


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["-o", "-", "--stream"], "--stream, --json and -o - write to stdout; give one of them"),
        (["-o", "a.wav", "--lines"], "--lines needs --stream and the text -"),
        (["-o", "-", "--json"], "give one of them"),
        (["-o", "a.wav", "--speed", "5"], "--speed 5: expected 0.25 to 4"),
        (["-o", "a.wav", "--speed", "nan"], "--speed nan: expected 0.25 to 4"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    speak: list[str], capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert runtime([*speak, *more]) == 2
    assert says in error_line(capsys)
