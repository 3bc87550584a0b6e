"""The gain follows the speech: clicks, coughs and silence around it do not count."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.runtime.recordings import RATE

from voxport.runtime.audio.gain import (
    SpeechLevel,
    amplified,
    decibels,
    gain_factor,
    reason_without_text,
    recording_gain_db,
)
from voxport.runtime.audio.sources import Recording

PEAK = -40.0  # dBFS of the quiet speech
HELD_OUT = Path(__file__).parents[3] / "export" / "evaluation" / "held_out"


def hiss(seconds: float, level_db: float = -75) -> np.ndarray:
    noise: np.ndarray = np.random.default_rng(1).standard_normal(round(seconds * RATE)) * gain_factor(
        level_db
    )
    return noise


def speech(seconds: float, peak_db: float = PEAK) -> np.ndarray:
    """Syllables of 0.2 s and pauses of 0.1 s, each with another loudness."""
    time = np.arange(round(seconds * RATE)) / RATE
    loudness = np.resize([1.0, 0.4, 0.7, 0.25], int(seconds / 0.3) + 1)[(time / 0.3).astype(int)]
    voice = np.sin(2 * np.pi * 150 * time) + 0.5 * np.sin(2 * np.pi * 1350 * time)
    envelope = np.clip(np.sin(2 * np.pi * time / 0.6), 0, None) + np.clip(
        -np.sin(2 * np.pi * time / 0.6), 0, None
    )
    sound = voice * loudness * envelope
    found: np.ndarray = hiss(seconds) + sound / np.abs(sound).max() * gain_factor(peak_db)
    return found


def with_clicks(samples: np.ndarray, every_s: float, length: int = 1) -> np.ndarray:
    clicked = samples.copy()
    for start in range(1000, len(clicked), round(every_s * RATE)):
        clicked[start : start + length] = 0.95
    return clicked


def cough(peak_db: float = -3) -> np.ndarray:
    count = round(0.3 * RATE)
    noise = np.random.default_rng(2).uniform(-1, 1, count) * np.hanning(count)
    sound: np.ndarray = noise / np.abs(noise).max() * gain_factor(peak_db)
    return sound


CASES = {
    "plain": speech(3),
    "one click": with_clicks(speech(3), 10),
    "clicks": with_clicks(speech(3), 0.5, 8),
    "click train": with_clicks(speech(3), 0.1),
    "click before": np.concatenate([[0.95] * 20, hiss(0.5), speech(3)]),
    "cough": np.concatenate([hiss(0.3), cough(), hiss(0.5), speech(3)]),
    "cough within": np.concatenate([speech(1.5), cough(), speech(1.5)]),
    "quieter cough": np.concatenate([hiss(0.3), cough(-12), hiss(0.5), speech(3)]),
    "noise after it": np.concatenate([speech(3), 0.7 * hiss(0.7, 0).clip(-1, 1)]),
    "noise before it": np.concatenate([0.7 * hiss(0.7, 0).clip(-1, 1), speech(4)]),
    "silence around": np.concatenate([np.zeros(20 * RATE), speech(1.2), np.zeros(20 * RATE)]),
    "hiss around": np.concatenate([hiss(40), speech(1.2), hiss(40)]),
    "hiss around and a click": with_clicks(np.concatenate([hiss(20), speech(1.2), hiss(20)]), 60),
}


def peak_of(samples: np.ndarray, block: int = 1000) -> float:
    level = SpeechLevel(RATE)
    for start in range(0, len(samples), block):
        level.add(samples[start : start + block].astype(np.float32))
    return decibels(level.peak())


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_that_of_the_speech(name: str) -> None:
    assert peak_of(CASES[name]) == pytest.approx(PEAK, abs=3)


@pytest.mark.parametrize("name", CASES)
def test_quiet_speech_gets_the_gain_of_its_own_level(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what does not belong to the speech is clipped, and no warning says that the recording is."""
    soundfile.write(tmp_path / "a.wav", CASES[name], RATE, subtype="FLOAT")
    recording = Recording(tmp_path / "a.wav", RATE)
    with caplog.at_level(logging.WARNING):
        gain = recording_gain_db("auto", recording.peak_dbfs())
        found = np.concatenate(list(amplified(recording.blocks(), gain, is_auto=True)))
    assert 36 <= gain <= 40 and "clipped" not in caplog.text
    quiet = np.abs(CASES[name]) <= 1.01 * gain_factor(PEAK)
    np.testing.assert_allclose(found[quiet], CASES[name][quiet] * gain_factor(gain), atol=2e-6)


def test_other_blocks_give_the_same_peak() -> None:
    assert len({peak_of(CASES["cough within"], block) for block in (320, 1600, 100_000)}) == 1


def test_a_loud_speaker_among_quiet_ones_is_not_a_cough() -> None:
    """A second of loud speech: its peak decides, because gain would clip it."""
    assert peak_of(np.concatenate([speech(3), speech(1.2, -6), speech(3)])) == pytest.approx(-6, abs=1)


@pytest.mark.parametrize("name", ["plain", "clicks", "cough", "hiss around"])
def test_even_speech_is_not_called_quiet(name: str) -> None:
    level = SpeechLevel(RATE)
    level.add(CASES[name].astype(np.float32))
    assert reason_without_text(level, -1 - PEAK).startswith("the model recognised no speech")


def test_hiss_with_clicks_is_not_speech() -> None:
    assert peak_of(with_clicks(hiss(5), 0.5)) < -55


def recorded() -> Iterator[Path]:
    yield from sorted(HELD_OUT.rglob("*.opus"))[::10]


@pytest.mark.parametrize("path", recorded(), ids=lambda path: path.stem)
def test_ordinary_recordings_have_their_largest_sample_as_peak(path: Path) -> None:
    """They get the gain that they got before clicks were looked for, to the bit."""
    samples, rate = soundfile.read(path, dtype="float32")
    recording = Recording(path, rate)
    assert recording.peak_dbfs() == decibels(float(np.abs(samples).max()))
    blocks = soundfile.blocks(path, rate, dtype="float32")
    np.testing.assert_array_equal(np.concatenate(list(recording.blocks())), np.concatenate(list(blocks)))
