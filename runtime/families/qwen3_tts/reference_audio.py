"""The codec at the end of a reference recording, whose sound the speech continues."""

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock

import numpy as np

from voxport.runtime.engines.base import Arrays
from voxport.runtime.families.qwen3_tts.decoder import SpeechDecoder

FRAMES = 5  # one call decodes so many; other requests wait for it
VOICES = 8  # whose states are kept; the published codec has 9 MB


class ReferenceStates:
    """States of the codec behind the references that were used last. Thread-safe."""

    def __init__(self) -> None:
        self._states: OrderedDict[bytes, Arrays] = OrderedDict()  # by codes; the last one was used last
        self._lock = Lock()

    def read(self, decoder: SpeechDecoder, codes: np.ndarray) -> Iterator[None]:
        """Decodes the codes int64 [F, K] of a reference without using the samples, and yields between calls.

        States that were kept replace the calls.
        """
        key = codes.tobytes()
        with self._lock:
            if (states := self._states.get(key)) is not None:
                self._states.move_to_end(key)
        if states is not None:
            decoder.load_codec(states, len(codes))
            return
        for start in range(0, len(codes), FRAMES):
            decoder.decode(codes[start : start + FRAMES])
            yield
        states = decoder.save_codec()
        with self._lock:
            self._states[key] = states
            while len(self._states) > VOICES:
                self._states.popitem(last=False)
