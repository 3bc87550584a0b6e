"""`Tempo`: the length of speech changes, and its pitch does not."""

import numpy as np
import pytest

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.tempo import Tempo

RATE, HZ = 24000, 440
Speed = pytest.mark.parametrize("speed", [0.25, 0.3, 0.5, 0.9, 1.25, 3.99, 4])


def tone(count: int) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * HZ * np.arange(count) / RATE)).astype(np.float32)


def changed(samples: np.ndarray, speed: float, size: int = 1920) -> list[np.ndarray]:
    tempo = Tempo(RATE, speed)
    return [
        *(tempo.feed(samples[start : start + size]) for start in range(0, len(samples), size)),
        tempo.finish(),
    ]


@Speed
@pytest.mark.parametrize("count", [0, 1, 100, 1921, 24001])
def test_the_number_of_samples_is_divided_by_the_speed(speed: float, count: int) -> None:
    assert len(np.concatenate(changed(tone(count), speed))) == round(count / speed)


@Speed
def test_the_pitch_and_the_level_stay(speed: float) -> None:
    samples = np.concatenate(changed(tone(4 * RATE), speed))
    middle = samples[len(samples) // 8 : -len(samples) // 8]
    loudest = np.argmax(np.abs(np.fft.rfft(middle))) * RATE / len(middle)
    assert abs(loudest - HZ) < 2 and abs(np.sqrt((middle**2).mean()) - 0.3 / np.sqrt(2)) < 0.02


@Speed
def test_samples_come_while_others_are_given(speed: float) -> None:
    pieces = changed(tone(RATE), speed)
    assert sum(map(len, pieces[:4])) > 0 and sum(map(len, pieces[:-1])) > 0.7 * RATE / speed


@pytest.mark.parametrize("speed", [0.24, 4.01, float("nan")])
def test_other_speeds_are_refused(speed: float) -> None:
    with pytest.raises(UsageError, match=r"0\.25 to 4"):
        Tempo(RATE, speed)
