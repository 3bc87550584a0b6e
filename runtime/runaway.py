"""`RunawayGuard`: finds speech whose model does not find the end, because it repeats itself or is silent."""

from bisect import insort
from collections import deque

import numpy as np

from voxport.runtime.batching import Status

FRAMES = 50  # 4 s: longer than a pause or a held sound of speech
MAX_PERIOD = 13  # frames: a second, a long word
# Root mean squares of frames. The level of the speech is one of its loudest frames, without single clicks.
# Whispers and room tone may both be 22 dB below loud speech. Room tone is steady: its frames differ by less
# than 4 dB, whispered syllables and gaps by 10 dB and more. Below 30 dB any sound counts as silence.
SILENCE = 10 ** (-50 / 20)  # below it there is no speech, until a frame was louder than `MIN_SPEECH`
MIN_SPEECH = 10 ** (-45 / 20)
SILENCE_RATIO = 10 ** (-30 / 20)  # ratio of silence to the level of the speech before
STEADY_RATIO, STEADY_RANGE = 10 ** (-18 / 20), 10 ** (6 / 20)  # ratio of steady sound; loudest to quietest
LOUD_FRAMES, LOUD_PART = (3, 12), 10  # the level is the third to twelfth loudest frame, at most a tenth


class RunawayGuard:
    """Follows the frames of one utterance.

    Whole frames are compared. The first code alone repeats in silence and in held sounds.
    """

    def __init__(self) -> None:
        self._last: deque[np.ndarray] = deque(maxlen=MAX_PERIOD)
        self._repeated = np.zeros(MAX_PERIOD, np.int64)  # frames in a row that equal the one `index` + 1 ago
        self._recent: deque[float] = deque(maxlen=FRAMES)  # levels
        self._levels: list[float] = []  # all frames, sorted

    def add_codes(self, codes: np.ndarray) -> Status | None:
        """Takes the codes int64 [K] of the next frame. Returns REPETITION if the last ones are a cycle."""
        equal = [np.array_equal(codes, earlier) for earlier in reversed(self._last)]
        equal += [False] * (MAX_PERIOD - len(equal))
        self._repeated = np.where(equal, self._repeated + 1, 0)
        self._last.append(codes.copy())
        return Status.REPETITION if self._repeated.max() >= FRAMES else None

    def add_samples(self, samples: np.ndarray, frames: int) -> int | None:
        """Takes the samples float32 [n] of the next `frames`. Returns how many of them precede the end of
        `FRAMES` silent ones; None if the speech is not silent for so long.
        """
        for index, frame in enumerate(samples.reshape(frames, -1)):
            level = float(np.sqrt(np.mean(frame**2)))
            insort(self._levels, level)
            self._recent.append(level)
            if len(self._recent) == FRAMES and self._is_silent():
                return index + 1
        return None

    def _is_silent(self) -> bool:
        """Whether the last `FRAMES` hold no speech, by all frames so far."""
        least, most = LOUD_FRAMES
        rank = min(max(least, len(self._levels) // LOUD_PART), most, len(self._levels))
        speech, loudest = self._levels[-rank], max(self._recent)
        if speech <= MIN_SPEECH:
            return loudest < SILENCE
        is_steady = loudest < STEADY_RANGE * min(self._recent)
        return loudest < speech * (STEADY_RATIO if is_steady else SILENCE_RATIO)
