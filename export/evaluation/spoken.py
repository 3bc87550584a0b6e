"""One part of a text spoken frame by frame, freely or with the codes of another run."""

import sys
from dataclasses import dataclass, replace

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.batching import CodeSlots, Status
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text_to_speech import TextToSpeech


@dataclass(frozen=True)
class SpokenPart:
    """`chosen` int64 [T, K] are the codes of each step, the last one that of the end where the model ended
    the speech. `samples` float32 [n] follow from the codes that were fed back.
    """

    request: SpeechRequest
    chosen: np.ndarray
    samples: np.ndarray
    status: Status

    @property
    def frames(self) -> np.ndarray:
        """The codes without that of the end: int64 [T, K]."""
        return self.chosen[: len(self.chosen) - (self.status == Status.END)]


def speak_part(task: TextToSpeech, request: SpeechRequest, forced: np.ndarray | None = None) -> SpokenPart:
    """Speaks a request. With `forced` int64 [T, K] the step after each frame takes these codes instead of
    the chosen ones, and there are exactly as many steps. Raises UsageError.
    """
    if forced is not None:  # no limit of the request ends the run before its last step
        request = replace(request, budget=None, max_frames=len(forced) + 1)
    slots = task.slot_decoder(1)
    if not isinstance(slots, CodeSlots):
        raise UsageError("evaluate: the frames of this model are not codes, which evaluation compares")
    for _ in slots.prepare(request)(0, lambda: sys.maxsize):
        pass
    chosen, pieces, final = list[np.ndarray](), [np.zeros(0, np.float32)], None
    try:
        while final is None and (forced is None or len(chosen) < len(forced)):
            if chosen:
                slots.feed(1)
            slots.decode(1)
            chosen.append(slots.codes(0).copy())
            if forced is not None:
                slots.replace_codes(0, forced[len(chosen) - 1])
            samples, final = slots.take(0)
            pieces += [] if samples is None else [samples]
    finally:
        slots.free(0)
    return SpokenPart(request, np.stack(chosen), np.concatenate(pieces), final or Status.LIMIT)
