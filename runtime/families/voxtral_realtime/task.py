"""Speech to text with a Voxtral-Realtime bundle."""

import logging
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bundle.errors import UsageError
from runtime.engines.base import Engine
from runtime.families.voxtral_realtime.constants import Constants
from runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from runtime.families.voxtral_realtime.transcript import Transcript
from runtime.speech_to_text import SpeechToText, TranscriptDelta

log = logging.getLogger(__name__)


class VoxtralSpeechToText(SpeechToText):
    """Each transcription uses a stream of its own on the shared engine."""

    def __init__(
        self, engine: Engine, constants: Constants, token_bytes: Callable[[int], bytes], is_live: bool
    ):
        """`is_live`: whether the bundle can encode live streams."""
        self._engine, self._constants, self._token_bytes = engine, constants, token_bytes
        self._is_live = is_live
        self._is_warm = False

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return self._constants.delays_ms

    def check_live(self) -> None:
        if not self._is_live:
            raise UsageError(
                "live: this bundle is for recordings; export it with the option streaming", field="live"
            )

    def transcribe(
        self,
        blocks: Iterable[np.ndarray],
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int = 1,
    ) -> Iterator[TranscriptDelta]:
        delay = self._constants.delay_index(delay_ms)
        if live:
            self.check_live()
        options = DecodeOptions(delay, chunk_tokens if live else None)
        return self._transcribe(
            blocks, StreamingDecoder(self._engine.stream(), self._constants, options), live
        )

    def _transcribe(
        self, blocks: Iterable[np.ndarray], decoder: StreamingDecoder, live: bool
    ) -> Iterator[TranscriptDelta]:
        if live:
            self._warm_up()
        transcript = Transcript(self._constants, self._token_bytes)
        yield from _deltas(decoder.feed(np.zeros(0, np.float32)), transcript)  # encodes the initial silence
        for block in blocks:
            yield from _deltas(decoder.feed(block), transcript)
        yield from _deltas(decoder.finish(), transcript)
        text = transcript.finish()
        yield TranscriptDelta(text, transcript.take_words())

    def _warm_up(self) -> None:
        """Opens every graph before the first sample is taken.

        It takes seconds at the published size, once.
        """
        if self._is_warm:
            return
        constants = self._constants
        decoder = StreamingDecoder(self._engine.stream(), constants, DecodeOptions(chunk_tokens=1))
        for _ in decoder.feed(np.zeros((constants.delays[0] + 3) * constants.samples_per_token, np.float32)):
            pass
        self._is_warm = True
        log.info("ready for live audio")


def _deltas(tokens: Iterable[int], transcript: Transcript) -> Iterator[TranscriptDelta]:
    for token in tokens:
        text = transcript.add(token)
        words = transcript.take_words()
        if text or words:
            yield TranscriptDelta(text, words)
