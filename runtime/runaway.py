"""`RunawayGuard`: finds speech whose model does not find the end, because it repeats itself or is silent."""

from collections import deque

import numpy as np

from runtime.batching import Status

FRAMES = 50  # 4 s: longer than a pause or a held sound of speech
MAX_PERIOD = 13  # frames: a second, a long word
SILENCE = 10 ** (-50 / 20)  # root mean square of a frame without speech


class RunawayGuard:
    """Follows the frames of one utterance.

    Whole frames are compared. The first code alone repeats in silence and in held sounds.
    """

    def __init__(self) -> None:
        self._last: deque[np.ndarray] = deque(maxlen=MAX_PERIOD)
        self._repeated = np.zeros(MAX_PERIOD, np.int64)  # frames in a row that equal the one `index` + 1 ago
        self._silent = 0  # frames in a row

    def add_codes(self, codes: np.ndarray) -> Status | None:
        """Takes the codes int64 [K] of the next frame. Returns REPETITION where the last ones are a cycle."""
        equal = [np.array_equal(codes, earlier) for earlier in reversed(self._last)]
        equal += [False] * (MAX_PERIOD - len(equal))
        self._repeated = np.where(equal, self._repeated + 1, 0)
        self._last.append(codes.copy())
        return Status.REPETITION if self._repeated.max() >= FRAMES else None

    def add_samples(self, samples: np.ndarray, frames: int) -> int | None:
        """Takes the samples float32 [n] of the next `frames`. Returns how many of them precede the end of
        `FRAMES` silent ones; None where the speech is not silent for so long.
        """
        for index, frame in enumerate(samples.reshape(frames, -1)):
            self._silent = self._silent + 1 if np.sqrt(np.mean(frame**2)) < SILENCE else 0
            if self._silent >= FRAMES:
                return index + 1
        return None
