"""Times of words: in order, within the sound, and the same for recordings and live streams."""

from typing import Any

import numpy as np
import pytest
from support.runtime.toy_realtime import (
    CONSTANTS,
    DELAYS_MS,
    TOKEN,
    noise_of_varying_level,
    task_with_many_words,
)

from voxport.runtime.audio.captions import Word
from voxport.runtime.families.voxtral_realtime.transcript import Transcript


def words_in_a_batch(samples: np.ndarray, delay_ms: int) -> list[Word]:
    """A stream in the second slot of a batch."""
    batch: Any = task_with_many_words().live_batch(2)
    batch.begin(delay_ms=delay_ms)
    stream, words = batch.begin(delay_ms=delay_ms), []
    for block in np.split(samples, range(TOKEN, len(samples), TOKEN)):
        stream.feed(block)
        words += [word for delta in batch.step().get(stream, ()) for word in delta.words]
    stream.finish()
    while stream.is_due:
        words += [word for delta in batch.step()[stream] for word in delta.words]
    return words


@pytest.mark.parametrize("delay_ms", DELAYS_MS)
@pytest.mark.parametrize("count", [TOKEN // 2, 16000, 47960])
def test_times_are_in_order_and_within_the_sound(count: int, delay_ms: int) -> None:
    samples = (noise_of_varying_level(count) / 2**15).astype(np.float32)
    found = [
        [
            word
            for delta in task_with_many_words().transcribe([samples], delay_ms=delay_ms, live=live)
            for word in delta.words
        ]
        for live in (False, True)
    ]
    assert found[0] == found[1] == words_in_a_batch(samples, delay_ms)
    starts, ends = [word.start for word in found[0]], [word.end for word in found[0]]
    assert starts == sorted(starts) and ends == sorted(ends)
    assert all(0 <= word.start < word.end <= count / CONSTANTS.sample_rate for word in found[0])


def test_tokens_behind_the_sound_have_the_times_of_its_last_token() -> None:
    transcript = Transcript(CONSTANTS, lambda token: bytes([ord("a") + token]))
    before, behind = [CONSTANTS.word_id, 5, 6], [7, 8, CONSTANTS.word_id, 9]
    deltas = list(transcript.deltas(before))
    transcript.end_audio(0.375)  # within the fifth token
    deltas += [*transcript.deltas(behind), transcript.end()]
    words = [(word.text, round(word.start, 3), word.end) for delta in deltas for word in delta.words]
    assert words == [("fghi", 0.0, 0.375), ("j", 0.295, 0.375)]
