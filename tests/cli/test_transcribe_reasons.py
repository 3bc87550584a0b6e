"""An empty transcript comes with its reason. The task finds words in sound above 0.1."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.runtime.recordings import RATE, noise, write_recording
from support.serve.loud_to_text import LoudToText

from voxport.runtime.__main__ import main as runtime


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxport.runtime.opening.open_task", lambda *arguments: LoudToText())


def damaged(path: Path) -> Path:
    """The first of three seconds can be read."""
    whole = write_recording(path, 0.1 * noise(3), subtype="PCM_16").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def click_and_hiss() -> np.ndarray:
    samples = 1e-4 * noise(2)
    samples[1000] = 0.05
    return samples


SOUNDS = {
    "silent": (np.zeros((RATE, 1), np.float32), "auto", "the sound is silent, with a peak of -inf dBFS"),
    "hiss": (click_and_hiss(), "auto", "the sound is silent"),
    "quiet": (0.1 * noise(2), "off", "the sound is too quiet, with a peak of"),
    "short": (0.2 * noise(0.05), "off", "the sound has 0.05 s, which is too short for a word"),
    "no words": (np.clip(noise(2), -0.09, 0.09), "off", "the model recognised no speech in 2.0 s of sound"),
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", SOUNDS)
def test_the_reason_is_a_warning(
    name: str,
    live: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    samples, gain, reason = SOUNDS[name]
    path = write_recording(tmp_path / "a.wav", samples, subtype="FLOAT")
    raw = io.BytesIO((samples * 32767).astype("<i2").tobytes())
    monkeypatch.setattr("voxport.cli.commands.transcribe.raw_stdin", lambda: raw)
    source = ["-", "--live"] if live else [str(path), "--gain", gain]
    assert runtime(["transcribe", *source, "--bundle", "B"]) == 0
    out, err = capsys.readouterr()
    assert out == "\n" and f"no text: {reason}" in err and err.count("is silent") == reason.count("is silent")


def test_damage_is_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damaged(tmp_path / "a.flac")
    assert runtime(["transcribe", str(path), "--bundle", "B", "--gain", "off", "--partial"]) == 0
    err = capsys.readouterr().err
    assert "no text: the sound is damaged after 1.0 s" in err and "psf" not in err


def test_a_transcript_has_no_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_recording(tmp_path / "a.wav", noise(1))
    assert runtime(["transcribe", str(path), "--bundle", "B"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() and "no text" not in err


def test_names_that_are_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, text = (os.fsdecode(bytes(tmp_path) + name) for name in (b"/\xff.wav", b"/\xff.txt"))
    soundfile.write(os.fsencode(sound), noise(1), RATE, format="WAV")
    printed = io.BytesIO()
    stdout = io.TextIOWrapper(printed, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert runtime(["transcribe", sound, "--bundle", "B", "-o", text]) == 0
    stdout.flush()
    assert printed.getvalue() == os.fsencode(text) + b"\n" and Path(text).read_text().strip()
