"""The log-mel spectrogram: levels, and frames of audio that arrives in blocks."""

from collections.abc import Sequence

import numpy as np
import pytest

from voxport.runtime.audio.mel import LogMel, MelSettings

SETTINGS = MelSettings(16000, 128, 400, 160, -6.5)


def mel_of(samples: np.ndarray, cuts: Sequence[int] = ()) -> np.ndarray:
    front = LogMel(SETTINGS)
    pieces = [front.feed(piece) for piece in np.split(samples, cuts)]
    return np.concatenate([*pieces, front.finish()])


def test_the_log_mel_of_silence_and_of_a_tone() -> None:
    assert (mel_of(np.zeros(1600, np.float32)) == -0.625).all()
    tone = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    assert mel_of(tone)[20:80].max() == pytest.approx(1.625, abs=1e-3)  # nothing clips the top


@pytest.mark.parametrize("size", [1, 7, 159, 160, 401, 1279, 1280, 4001])
def test_frames_do_not_depend_on_the_sizes_of_blocks(size: int) -> None:
    samples = np.random.default_rng(0).standard_normal(5 * 1280).astype(np.float32)
    whole = mel_of(samples)
    assert whole.shape == (40, 128)
    np.testing.assert_allclose(mel_of(samples, range(size, len(samples), size)), whole, atol=1e-6)
