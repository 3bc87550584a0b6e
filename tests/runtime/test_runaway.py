"""Speech that repeats itself or stays silent is stopped; speech with pauses and held sounds is not."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pytest

from voxport.runtime.batching import Status
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.utterance import MAX_PERIOD, RUNAWAY_FRAMES, FrameCollector, RunawayGuard

SAMPLES, BOOKS = 8, 4  # of a frame


class Codec:
    """Samples of a frame are as loud as its code 0."""

    has_room = True

    def decode(self, codes: np.ndarray) -> np.ndarray:
        return np.repeat(codes[:, 0] / 1000, SAMPLES).astype(np.float32)


def run(
    frames: Iterable[np.ndarray | None], budget: float | None = 100.0, chunk: int = 1, **options: Any
) -> tuple[Status | None, int]:
    """The final status, and the number of frames that were spoken until then."""
    request = SpeechRequest("a", budget=budget, chunk_frames=chunk, **options)
    spoken, samples = FrameCollector(cast(Any, Codec()), request, lambda text: 100), 0
    for codes in frames:
        output = spoken.push(codes)
        samples += 0 if output.samples is None else len(output.samples)
        if output.final:
            return output.final, samples // SAMPLES
    return None, samples // SAMPLES


def speech(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(100, 900, (count, BOOKS))


def cycle(period: int, count: int) -> np.ndarray:
    return np.resize(speech(period, 1), (count, BOOKS))


@pytest.mark.parametrize("period", [1, 2, 5, MAX_PERIOD])
def test_a_cycle_of_whole_frames_is_stopped(period: int) -> None:
    frames = np.concatenate((speech(20), cycle(period, 200)))
    assert run(frames) == (Status.REPETITION, 20 + period + RUNAWAY_FRAMES)


def test_a_cycle_with_noise_in_it_is_not() -> None:
    frames = cycle(3, 200)
    frames[RUNAWAY_FRAMES // 2 :: RUNAWAY_FRAMES // 2, -1] += 1  # one code of a frame
    assert run(frames)[0] is None


def test_a_longer_cycle_is_not_and_neither_is_the_first_code_alone() -> None:
    assert run(cycle(MAX_PERIOD + 1, 300))[0] is None
    frames = speech(200)
    frames[:, 0] = 500
    assert run(frames)[0] is None


def silent_from(start: int, count: int) -> np.ndarray:
    frames = speech(count)
    frames[start:, 0] = 0
    return frames


@pytest.mark.parametrize("chunk", [1, 5, 7, 64, 200])
def test_silence_is_stopped_at_the_same_frame_in_chunks_of_any_size(chunk: int) -> None:
    """Also where the same chunk has the end of the model, or a limit, behind it."""
    frames = [*silent_from(20, 20 + RUNAWAY_FRAMES + 30), None]
    assert run(frames, chunk=chunk) == (Status.SILENCE, 20 + RUNAWAY_FRAMES)
    limited = run(frames, chunk=chunk, max_frames=20 + RUNAWAY_FRAMES + 9)
    assert limited == (Status.SILENCE, 20 + RUNAWAY_FRAMES)


@pytest.mark.parametrize("chunk", [1, 5, 7, 64])
def test_a_limit_that_comes_first_or_at_the_same_frame_is_the_reason(chunk: int) -> None:
    for limit in (20 + RUNAWAY_FRAMES - 1, 20 + RUNAWAY_FRAMES):
        frames = silent_from(20, 200)
        assert run(frames, chunk=chunk, max_frames=limit) == (Status.LIMIT, limit)


def test_a_pause_is_not() -> None:
    frames = speech(300)
    frames[20 : 20 + RUNAWAY_FRAMES - 1, 0] = 0
    frames[100 : 100 + RUNAWAY_FRAMES - 1, 0] = 3  # -50.5 dB
    frames[200 : 200 + RUNAWAY_FRAMES, 0] = 150  # -16 dB, less than 18 below the speech
    assert run(frames)[0] is None


@pytest.mark.parametrize("level_db", [-40, -45, -48, -50, -70])
@pytest.mark.parametrize("speech_db", [-20, -15])
def test_room_tone_after_speech_is_silence(level_db: float, speech_db: float) -> None:
    assert guard_of([*varied(30, speech_db), *varied(100, level_db, spread=1)]) == 30 + RUNAWAY_FRAMES


@pytest.mark.parametrize("level_db", [-60, -50.5])
def test_silence_before_any_speech_is_below_a_fixed_level(level_db: float) -> None:
    assert guard_of(varied(100, level_db, spread=0)) == RUNAWAY_FRAMES


@pytest.mark.parametrize("level_db", [-20, -30, -38])
def test_quiet_speech_is_not_silence(level_db: float) -> None:
    """Also after a click, and after a louder sentence."""
    assert guard_of(varied(300, level_db)) is None
    assert guard_of([0.9, 0.5, *varied(300, level_db)]) is None
    assert guard_of([*varied(30, level_db + 10), *varied(300, level_db)]) is None


@pytest.mark.parametrize("below_db", [15, 18, 22, 25])
@pytest.mark.parametrize("spread", [5, 8])
def test_a_whispered_passage_is_not_silence(below_db: float, spread: float) -> None:
    assert guard_of([*[0.1] * 30, *varied(300, -20 - below_db, spread)]) is None


@pytest.mark.parametrize(("below_db", "spread"), [(22, 1), (28, 1), (40, 5)])
def test_steady_sound_and_far_quieter_sound_is_silence(below_db: float, spread: float) -> None:
    assert guard_of([*[0.1] * 30, *varied(300, -20 - below_db, spread)]) == 30 + RUNAWAY_FRAMES


def varied(count: int, level_db: float, spread: float = 8) -> list[float]:
    """Root mean squares of frames around a level, as syllables have them."""
    decibels = level_db + np.random.default_rng(0).uniform(-spread, spread, count)
    return [float(10 ** (each / 20)) for each in decibels]


def guard_of(levels: Iterable[float]) -> int | None:
    """The frame after which the guard finds silence."""
    guard = RunawayGuard()
    ends = (index for index, level in enumerate(levels, 1) if guard.add_samples(np.full(SAMPLES, level), 1))
    return next(ends, None)


def test_without_a_budget_nothing_is_stopped() -> None:
    assert run(cycle(1, 300), budget=None)[0] is None
    silent = speech(300)
    silent[:, 0] = 0
    assert run(silent, budget=None)[0] is None
