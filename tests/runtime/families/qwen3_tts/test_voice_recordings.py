"""Recordings and transcripts that voices are made from, and those that are refused."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxport.bundle.errors import UsageError
from voxport.runtime.families.qwen3_tts.cloning import check_transcript, read_recording

RATE = 24_000
TIME = np.arange(4 * RATE) / RATE
NOISE = np.random.default_rng(0).normal(size=len(TIME))
LETTERS, WIDE = "x" * 100, "\u597d" * 30  # usually 6.6 s and 6.7 s


@pytest.mark.parametrize(
    ("transcript", "seconds", "is_refused"),
    [
        *((LETTERS, 2.2, True), (LETTERS, 2.3, False), (LETTERS, 30, False), ("Hello.", 2, False)),
        *((WIDE, 2.2, True), (WIDE, 30, False), ("Hello.", 18, True), (WIDE[:2], 18, True)),
        ("0176 5550 142", 10, False),
    ],
)
def test_a_transcript_fits_its_recording(transcript: str, seconds: float, is_refused: bool) -> None:
    """A half of each recording is silent."""
    beeps = (np.arange(int(seconds * RATE)) % RATE < RATE / 2).astype(np.float32)
    with pytest.raises(UsageError, match="every word") if is_refused else nullcontext():
        check_transcript(transcript, beeps, RATE)


SOUNDS: dict[str, tuple[np.ndarray, bool]] = {  # and whether they may be speech
    "noise": (NOISE, False),
    "dark noise": (np.convolve(NOISE, np.ones(50) / 50, "same"), False),
    "hum": (np.sum([np.sin(2 * np.pi * 50 * k * TIME) / k for k in range(1, 9)], axis=0), False),
    "hum in noise": (np.sin(2 * np.pi * 100 * TIME) + 0.01 * NOISE, False),
    "whisper": (NOISE * (0.15 + np.abs(np.sin(4 * TIME))), True),
    "speech in noise": (np.sin(2 * np.pi * 200 * TIME) * np.abs(np.sin(4 * TIME)) + 0.3 * NOISE, True),
}


@pytest.mark.parametrize("level_db", [-50, -20])
@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_that_does_not_change_is_no_speech(tmp_path: Path, name: str, level_db: float) -> None:
    sound, may_be_speech = SOUNDS[name]
    samples = 10 ** (level_db / 20) * sound / sound.std()
    soundfile.write(tmp_path / "a.wav", samples, RATE, "FLOAT")
    with nullcontext() if may_be_speech else pytest.raises(UsageError, match="a steady noise or tone; give"):
        read_recording(tmp_path / "a.wav", RATE)


def written(path: Path, seconds: float, rate: int = RATE, channels: int = 1, scale: float = 0.3) -> Path:
    time = np.arange(int(seconds * rate)) / rate
    hiss = 0.01 * np.random.default_rng(0).uniform(-1, 1, len(time))
    beeps = np.sin(2 * np.pi * 200 * time) * (4 * time % 1 < 0.5)
    wave = np.clip(scale * (beeps + hiss), -1, 1)
    soundfile.write(path, np.repeat(wave[:, None], channels, 1), rate, "FLOAT")
    return path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seconds": 0.9}, r"0\.90 s, expected at least 1 s"),
        ({"seconds": 31}, "longer than 30 s"),
        ({"seconds": 4, "scale": 1e-3}, "silent"),
    ],
)
def test_recordings_that_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_recording(written(tmp_path / "a.wav", **changes), RATE)


@pytest.mark.parametrize(
    ("changes", "warns"),
    [
        ({"seconds": 2}, "better from 3 s"),
        ({"seconds": 4, "scale": 2}, "clipped"),
        ({"seconds": 4, "rate": 12000}, "12000 samples per second"),
        ({"seconds": 4, "rate": 8000}, "no sound above 4 kHz"),
        ({"seconds": 4, "channels": 2}, ""),
        ({"seconds": 4, "rate": 48_000}, ""),
    ],
)
def test_recordings_that_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, int], warns: str
) -> None:
    caplog.set_level(logging.WARNING)
    samples = read_recording(written(tmp_path / "a.wav", **changes), RATE)
    assert abs(len(samples) - changes["seconds"] * RATE) <= 1
    assert np.abs(samples).max() == pytest.approx(min(changes.get("scale", 0.3), 1), rel=0.02)
    assert warns in caplog.text and bool(warns) == bool(caplog.text)
