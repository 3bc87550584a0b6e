"""Channels that cancel, and samples with an offset, in recordings and live."""

import io
import logging
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime.recordings import RATE

from voxport.runtime.audio.mixing import AHEAD, Mixer
from voxport.runtime.audio.sources import Converter, LiveSource, Recording


def voice(seconds: float = 2.0, rate: int = RATE, level: float = 0.3) -> np.ndarray:
    """float32 [n, 1]: a tone with pauses."""
    time = np.arange(round(seconds * rate)) / rate
    sound = level * np.sin(2 * np.pi * 200 * time) * (np.sin(2 * np.pi * 2 * time) > -0.5)
    return sound[:, None].astype(np.float32)


def recorded(path: Path, samples: np.ndarray, rate: int = RATE) -> np.ndarray:
    soundfile.write(path / "a.wav", samples, rate, subtype="FLOAT")
    return np.concatenate(list(Recording(path / "a.wav", RATE).blocks()))


def live(samples: np.ndarray, rate: int = RATE) -> np.ndarray:
    content = np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    source = LiveSource(cast(io.RawIOBase, io.BytesIO(content)), rate, samples.shape[1], RATE)
    return np.concatenate(list(source.blocks()))


CANCELLING = {
    "inverted": [1, -1],
    "inverted and quieter": [1, -0.7],
    "the second is louder": [-0.6, 1],
    "three": [1, -0.5, -0.5],
    "four": [1, -1, 0.5, -0.5],
    "six": [0.9, -0.9, 1, -0.9, 0.9, -0.9],
}


@pytest.mark.parametrize("name", CANCELLING)
def test_channels_that_cancel_do_not_vanish(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    factors = np.array(CANCELLING[name], np.float32)
    loudest = int(np.abs(factors).argmax())
    samples = voice() * factors
    with caplog.at_level(logging.WARNING):
        found = recorded(tmp_path, samples)
        assert f"channels cancel each other; channel {loudest + 1} is taken" in caplog.text
        caplog.clear()
        found_live = live(samples)
        assert caplog.text.count("channels cancel each other") == 1
    np.testing.assert_array_equal(found, samples[:, loudest])
    late = RATE // 2  # decided after 0.2 s
    np.testing.assert_allclose(np.abs(found_live[late:]), np.abs(samples[late:, loudest]), atol=1e-4)


CHANGES: dict[str, list[int | None]] = {  # the right channel in parts of 3 s, as a factor of the left one
    "inverted after silence": [1, None, -1],
    "inverted at once": [1, -1],
    "inverted first": [-1, 1],
    "inverted twice": [1, -1, 1, -1],
    "inverted late": [1, 1, 1, 1, -1],
}


@pytest.mark.parametrize("name", CHANGES)
def test_no_part_of_a_recording_vanishes(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    part = voice(3)
    parts = [(0 if factor is None else 1, factor or 0) * part for factor in CHANGES[name]]
    samples = np.concatenate(parts).astype(np.float32)
    found = recorded(tmp_path, samples)
    assert caplog.text.count("the channels cancel each other; channel 1 is taken") == 1
    left = samples[:, 0]
    assert len(found) == len(left)
    assert (np.abs(found - left) > 1e-6).sum() <= 0.02 * RATE * len(parts)  # a step at each change


ORDINARY = {
    "equal": [1, 1],
    "one is silent": [1, 0],
    "one of six": [0, 0, 1, 0, 0, 0],
    "quieter": [1, 0.3],
    "a little inverted": [1, -0.2],
    "six": [1, 0.5, 0.2, 0.3, 0.8, 0.1],
}


@pytest.mark.parametrize("name", ORDINARY)
def test_other_channels_are_averaged(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples = voice() * np.array(ORDINARY[name], np.float32)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(recorded(tmp_path, samples), samples.mean(axis=1))
        np.testing.assert_allclose(live(samples), samples.mean(axis=1), atol=1e-4)
    assert "cancel" not in caplog.text


def test_independent_channels_are_averaged(tmp_path: Path) -> None:
    samples = 0.1 * np.random.default_rng(0).standard_normal((2 * RATE, 2)).astype(np.float32)
    np.testing.assert_array_equal(recorded(tmp_path, samples), samples.mean(axis=1))


@pytest.mark.parametrize("offset", [0.05, 0.1, -0.2, 0.5])
@pytest.mark.parametrize("level", [0.3, 0.01])
def test_an_offset_is_removed(offset: float, level: float, tmp_path: Path) -> None:
    samples = voice(level=level)
    found = recorded(tmp_path, samples + np.float32(offset))
    assert np.abs(found - samples[:, 0]).max() < 0.03 * level + 1e-4
    late = RATE // 2
    found_live = live(samples + np.float32(offset))
    assert len(found_live) == len(samples)
    assert np.abs(found_live[late:] - samples[late:, 0]).max() < 0.03 * level + 1e-4


def test_the_peak_is_measured_without_the_offset(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", voice(level=0.01) + 0.2, RATE, subtype="FLOAT")
    assert Recording(tmp_path / "a.wav", RATE).peak_dbfs() == pytest.approx(-40, abs=0.5)


def test_offsets_of_channels_are_removed_one_by_one(tmp_path: Path) -> None:
    samples = voice() * np.array([1, -1], np.float32) + np.array([0.1, -0.3], np.float32)
    found = recorded(tmp_path, samples)
    np.testing.assert_allclose(np.abs(found), np.abs(voice()[:, 0]), atol=0.02)


def test_an_offset_that_begins_later_is_removed(tmp_path: Path) -> None:
    samples = voice(4)
    samples[2 * RATE :] += 0.2
    found = recorded(tmp_path, samples)
    assert abs(found[:RATE].mean()) < 0.01 and abs(found[3 * RATE :].mean()) < 0.02


@pytest.mark.parametrize("offset", [0.0, 0.0005])
def test_sound_without_an_offset_is_not_changed(offset: float, tmp_path: Path) -> None:
    samples = voice() + np.float32(offset)
    np.testing.assert_array_equal(recorded(tmp_path, samples), samples[:, 0])


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 30000), max_size=12),
    offset=st.sampled_from([0.0, 0.2]),
    factors=st.sampled_from([[1], [1, -1], [1, 0.5]]),
    ahead=st.sampled_from([0, AHEAD]),
)
def test_the_division_into_blocks_changes_no_sample(
    cuts: list[int], offset: float, factors: list[float], ahead: int
) -> None:
    samples = (voice(30000 / RATE) * np.array(factors) + offset).astype(np.float32)
    samples[9000:] = np.abs(samples[9000:])

    def converted(pieces: list[np.ndarray]) -> np.ndarray:
        converter = Converter(RATE, RATE, len(factors), Mixer(RATE, len(factors), ahead))
        return np.concatenate([*map(converter.feed, pieces), converter.finish()])

    np.testing.assert_array_equal(converted(np.split(samples, sorted(cuts))), converted([samples]))


@pytest.mark.parametrize(
    ("rate", "cut_hz", "is_narrow"),
    [(8000, 4000, True), (16000, 3400, True), (48000, 3800, True), (16000, 8000, False)],
)
def test_narrow_band_recordings_are_a_warning(
    rate: int, cut_hz: int, is_narrow: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(2 * rate)
    spectrum = np.fft.rfft(noise)
    spectrum[np.fft.rfftfreq(len(noise), 1 / rate) > cut_hz] = 0
    soundfile.write(tmp_path / "a.wav", np.fft.irfft(spectrum), rate)
    with caplog.at_level(logging.WARNING):
        Recording(tmp_path / "a.wav", RATE).peak_dbfs()
    assert ("no sound above 4 kHz" in caplog.text) == is_narrow
