"""One sentence spoken frame by frame, freely or with the codes of another run."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.batching import Status
from runtime.speech_request import SpeechRequest
from runtime.text_to_speech import TextToSpeech


@dataclass(frozen=True)
class Spoken:
    """`chosen` int64 [T, K] are the codes of each step, the last one that of the end where the model ended
    the speech. `samples` float32 [n] follow from the codes that were fed back.
    """

    chosen: np.ndarray
    samples: np.ndarray
    status: Status

    @property
    def ended(self) -> bool:
        """Whether the model ended the speech itself."""
        return self.status == Status.END

    @property
    def frames(self) -> np.ndarray:
        """The codes without that of the end: int64 [T, K]."""
        return self.chosen[: len(self.chosen) - self.ended]


def speak(task: TextToSpeech, request: SpeechRequest, forced: np.ndarray | None = None) -> Spoken:
    """Speaks a request. With `forced` int64 [T, K] the step after each frame takes these codes instead of
    the chosen ones, and there are as many steps. Raises UsageError.
    """
    slots = task.slot_decoder(1)
    for _ in slots.prepare(request)(0, lambda: sys.maxsize):
        pass
    chosen: list[np.ndarray] = []
    pieces: list[np.ndarray] = []
    final: Status | None = None
    try:
        while final is None:
            if chosen:
                slots.feed(1)
            slots.decode(1)
            chosen.append(slots.codes(0).copy())
            if forced is not None:
                slots.replace_codes(0, forced[len(chosen) - 1])
            samples, final = slots.take(0)
            pieces += [] if samples is None else [samples]
            if forced is not None and len(chosen) == len(forced):
                break
    finally:
        slots.free(0)
    return Spoken(np.stack(chosen), _joined(pieces), final or Status.LIMIT)


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *pieces])
