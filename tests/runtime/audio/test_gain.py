"""Gain of recordings and live sound: which get it, warnings, full scale."""

import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.gain import (
    SpeechLevel,
    amplified,
    check_gain,
    decibels,
    gain_factor,
    recording_gain_db,
    with_quiet_warning,
)
from voxport.runtime.audio.sources import Recording

RATE = 16000


def tone(seconds: float, level_db: float) -> np.ndarray:
    samples = np.sin(2 * np.pi * 440 * np.arange(round(seconds * RATE)) / RATE) * gain_factor(level_db)
    return samples.astype(np.float32)


@pytest.mark.parametrize(
    ("gain", "peak", "expected"),
    [
        ("auto", -30, 29), ("auto", -6.1, 5.1), ("auto", -6, 0), ("auto", 0, 0), ("auto", -59, 40),
        ("auto", -61, 0), ("auto", -np.inf, 0), ("off", -30, 0), (-12.5, -3, -12.5), (20, -30, 20),
        ("auto", 6, -7),
    ],
)  # fmt: skip
def test_the_gain_of_a_recording(gain: str | float, peak: float, expected: float) -> None:
    assert recording_gain_db(gain, peak) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gain", "peak", "says"),
    [
        ("auto", -30, ""), ("off", -30, "peak of -30 dBFS"), ("off", -25, ""), (3, -30, "peak of -27 dBFS"),
        ("off", -70, ""), ("auto", -70, ""), (-30, -1, "peak of -31 dBFS"),
    ],
)  # fmt: skip
def test_quiet_recordings_are_a_warning(
    caplog: pytest.LogCaptureFixture, gain: str | int, peak: int, says: str
) -> None:
    with caplog.at_level(logging.WARNING):
        recording_gain_db(gain, peak)
    assert says in caplog.text if says else not caplog.text


@pytest.mark.parametrize("gain", ["-200", "61", "nan", "inf", "loud", "", "3 dB"])
def test_a_wrong_gain_is_refused(gain: str) -> None:
    with pytest.raises(UsageError, match="expected auto, off, or -60 to 60 dB") as caught:
        check_gain(gain)
    assert caught.value.field == "gain"


def test_gains_are_read() -> None:
    assert [check_gain(text) for text in ("auto", "off", "-3.5", "60")] == ["auto", "off", -3.5, 60.0]


@pytest.mark.parametrize("channels", [1, 2])
def test_the_peak_of_a_recording_is_that_of_the_mixed_channels(tmp_path: Path, channels: int) -> None:
    samples = np.stack([tone(2, -20), tone(2, -20) / 2], axis=1)[:, :channels]
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    recording = Recording(tmp_path / "a.wav", RATE)
    expected = -20 if channels == 1 else -20 + decibels(0.75)
    assert recording.peak_dbfs() == pytest.approx(expected, abs=0.01)
    assert sum(map(len, recording.blocks())) == 2 * RATE  # from the start again


def test_samples_beyond_full_scale_are_clipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        (found,) = amplified([np.array([0.6, -0.6, 0.4], np.float32)], 6.0206)
    np.testing.assert_allclose(found, [1, -1, 0.8], atol=1e-5)
    assert "clipped 2 samples" in caplog.text


@pytest.mark.parametrize(("seconds", "level", "warns"), [(30, -30, True), (30, -20, False), (3, -40, True)])
def test_quiet_live_sound_is_one_warning_after_ten_seconds_or_at_its_end(
    caplog: pytest.LogCaptureFixture, seconds: int, level: int, warns: bool
) -> None:
    samples = tone(seconds, level)
    with caplog.at_level(logging.WARNING):
        passed = list(with_quiet_warning(np.split(samples, 300), SpeechLevel(RATE)))
    np.testing.assert_array_equal(np.concatenate(passed), samples)
    assert len(caplog.records) == warns and ("raise it with the option gain" in caplog.text) == warns


@pytest.mark.parametrize(("seconds", "warns"), [(3, False), (30, True)])
def test_silent_live_sound_is_a_warning_while_it_goes_on(
    seconds: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At its end the reason of the empty transcript says it."""
    with caplog.at_level(logging.WARNING):
        list(with_quiet_warning(np.split(np.zeros(seconds * RATE), 300), SpeechLevel(RATE)))
    assert caplog.text.count("the sound is silent, with a peak of -inf dBFS") == warns
