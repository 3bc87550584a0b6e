"""`Utterance`: a request that is being spoken: its decoder, noise, waiting codes and stop rule."""

import logging

import numpy as np

from runtime.batching import SlotOutput, Status
from runtime.engines.base import Stream
from runtime.families.voxtral_tts.constants import END_AUDIO, Constants
from runtime.families.voxtral_tts.decoder import SpeechDecoder
from runtime.families.voxtral_tts.prefix_cache import PrefixCache
from runtime.families.voxtral_tts.prompt import Prompt
from runtime.text_to_speech import SpeechRequest

log = logging.getLogger(__name__)


class Utterance:
    """Reads the prompt on construction; then each frame's codes are pushed."""

    def __init__(self, decoder: SpeechDecoder, request: SpeechRequest):
        """`decoder` has read the prompt of the request."""
        self.decoder, self._request = decoder, request
        self._generator = np.random.default_rng(request.seed)
        self._waiting: list[np.ndarray] = []
        self._frames = 0

    def noise(self) -> np.ndarray:
        """Noise of the next frame: float32 [1, K - 1]."""
        codebooks = self.decoder.constants.n_codebooks
        return self._generator.standard_normal((1, codebooks - 1), dtype=np.float32)

    def push(self, codes: np.ndarray) -> SlotOutput:
        """Takes the codes int64 [K] of a frame. Gives samples where a chunk is full or the speech ends."""
        final: Status | None = Status.ENDED
        if codes[0] != END_AUDIO:
            self._waiting.append(codes)
            self._frames += 1
            final = Status.CUT_OFF if self._must_stop() else None
        samples = None
        if self._waiting and (final or len(self._waiting) == self._request.chunk_frames):
            samples, self._waiting = self.decoder.decode(np.stack(self._waiting)), []
        return SlotOutput(samples, final)

    def _must_stop(self) -> bool:
        constants = self.decoder.constants
        if not self.decoder.has_room:
            rows = self.decoder.stream.capacity("decode_step")
            log.warning("stopped after %d frames: the cache of %d rows is full", self._frames, rows)
            return True
        if self._frames == self._request.max_frames:
            seconds = self._frames * constants.samples_per_frame / constants.sample_rate
            log.warning("stopped at the limit of %d frames (%.1f s)", self._frames, seconds)
            return True
        return False


def start_utterance(
    stream: Stream, constants: Constants, request: SpeechRequest, prompt: Prompt, prefixes: PrefixCache
) -> Utterance:
    """Reads the prompt of a request into an empty stream; the rows of the voice's prefix come from
    `prefixes`.
    """
    decoder, rows = SpeechDecoder(stream, constants), prefixes.load(prompt)
    computed = decoder.start(prompt, rows)
    if rows is None:
        prefixes.save(prompt, computed)
    return Utterance(decoder, request)
