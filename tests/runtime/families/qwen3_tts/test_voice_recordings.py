"""Recordings and transcripts that voices are made from, and those that are refused."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.runtime.recordings import repeated_sentence

from voxport.bundle.errors import UsageError
from voxport.runtime.families.qwen3_tts.cloning import check_transcript, read_recording

RATE = 24_000
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
    with pytest.raises(UsageError, match="every word") if is_refused else nullcontext():
        check_transcript(transcript, seconds, seconds / 2)


NOISE, TIME = np.random.default_rng(0).normal(size=4 * RATE), np.arange(4 * RATE) / RATE
SENTENCE = repeated_sentence(4, RATE)
KEYS = np.exp(-150 * (TIME % 0.17))
CHORD = sum((np.sin(2 * np.pi * pitch * TIME) for pitch in (262, 330, 392)), np.zeros(len(TIME)))
SOUNDS: dict[str, tuple[np.ndarray, bool]] = {  # and whether they have speech
    "noise": (NOISE, False),
    "dark noise": (np.convolve(NOISE, np.ones(50) / 50, "same"), False),
    "wind": (np.convolve(NOISE, np.ones(20) / 20, "same") * (1.2 + np.sin(2 * TIME)), False),
    "typing": (NOISE * KEYS, False),
    "hum": (CHORD / 3 + np.sin(2 * np.pi * 50 * TIME) + 0.01 * NOISE, False),
    "music": (CHORD * np.exp(-3 * (TIME % 0.5)), False),
    "speech": (SENTENCE, True),
    "speech in noise": (SENTENCE + 0.5 * SENTENCE.std() * NOISE, True),
}


@pytest.mark.parametrize("level_db", [-50, -20])
@pytest.mark.parametrize("name", SOUNDS)
def test_a_voice_is_made_of_speech_only(tmp_path: Path, name: str, level_db: float) -> None:
    sound, has_speech = SOUNDS[name]
    samples = 10 ** (level_db / 20) * sound / sound.std()
    soundfile.write(tmp_path / "a.wav", samples, RATE, "FLOAT")
    with nullcontext() if has_speech else pytest.raises(UsageError, match="has no speech; give"):
        read_recording(tmp_path / "a.wav", RATE)


def written(path: Path, seconds: float, rate: int = RATE, channels: int = 1, scale: float = 0.3) -> Path:
    wave = np.clip(scale * repeated_sentence(seconds, rate), -1, 1)
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
