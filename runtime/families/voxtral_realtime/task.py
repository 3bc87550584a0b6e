"""Speech to text with a Voxtral-Realtime bundle."""

import logging
from collections.abc import Callable, Iterator
from threading import Lock

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families.voxtral_realtime.constants import ENCODER, Constants
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, Silence, StreamingDecoder
from voxport.runtime.families.voxtral_realtime.live import LiveSlots
from voxport.runtime.families.voxtral_realtime.transcript import Transcript
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.transcription import LiveBatch, TranscriptDelta

LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "ja", "ko", "nl", "pt", "ru", "zh")
BATCHED = ("embed_tokens", "decode_step")  # components that one call runs for all live streams
log = logging.getLogger(__name__)


class VoxtralSpeechToText(SpeechToText):
    """Each transcription uses a stream of its own on the shared engine."""

    def __init__(
        self,
        engine: Engine,
        constants: Constants,
        token_bytes: Callable[[int], bytes],
        is_live: bool,
        max_live: int = 1,
        languages: tuple[str, ...] = LANGUAGES,
    ):
        """`is_live`: whether the bundle can encode live streams. `max_live`: how many a step can serve."""
        self._engine, self._constants, self._token_bytes = engine, constants, token_bytes
        self._is_live, self._max_live, self.languages = is_live, max_live, languages
        self._silences: dict[int, Silence] = {}  # by delay
        self._lock = Lock()  # for the silences
        self._is_warm = False

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return self._constants.delays_ms

    @property
    def max_chunk_tokens(self) -> int:
        return self._engine.stream().signatures[ENCODER].dims["T"][1]

    def check_live(self) -> None:
        if not self._is_live:
            raise UsageError("live: this bundle is for recordings; export it with --streaming", field="live")

    @property
    def max_live(self) -> int:
        return self._max_live

    def begin(
        self,
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int | None = None,
        blank_penalty: bool = False,
    ) -> "VoxtralTranscription":
        delay = self._constants.delay_index(delay_ms, live)
        if live:
            self.check_live()
            self._warm_up()
        chunk = chunk_tokens or (1 if live else None)
        options = DecodeOptions(delay, chunk, blank_penalty=blank_penalty)
        decoder = StreamingDecoder(self._engine.stream(), self._constants, options)
        if live or delay in self._silences:
            decoder.load_silence(self._silence(delay))
        return VoxtralTranscription(decoder, self._new_transcript())

    def live_batch(self, slots: int) -> LiveBatch:
        if slots > self._max_live:
            raise UsageError(f"live: one step serves at most {self._max_live} streams, not {slots}")
        self.check_live()
        self._warm_up()
        batch = self._engine.batched(slots)

        def new_decoder(delay_ms: int | None, stream: Stream) -> StreamingDecoder:
            delay = self._constants.delay_index(delay_ms, live=True)
            audio = stream if slots == 1 else self._engine.stream()
            decoder = StreamingDecoder(audio, self._constants, DecodeOptions(delay, chunk_tokens=1))
            decoder.stream = stream
            decoder.load_silence(self._silence(delay))
            return decoder

        return LiveSlots(batch, new_decoder, self._new_transcript)

    def _new_transcript(self) -> Transcript:
        return Transcript(self._constants, self._token_bytes)

    def _silence(self, delay: int) -> Silence:
        """What each live stream begins with. It is computed once for a delay."""
        with self._lock:
            if delay not in self._silences:
                options = DecodeOptions(delay)
                decoder = StreamingDecoder(self._engine.stream(), self._constants, options)
                decoder.begin()
                self._silences[delay] = decoder.save_silence()
            return self._silences[delay]

    def _warm_up(self) -> None:
        """Opens every graph before the first sample is taken.

        It takes seconds at the published size, once.
        """
        if self._is_warm:
            return
        constants = self._constants
        decoder = StreamingDecoder(self._engine.stream(), constants, DecodeOptions(chunk_tokens=1))
        decoder.load_silence(self._silence(0))
        for _ in decoder.feed(np.zeros((constants.delays[0] + 3) * constants.samples_per_token, np.float32)):
            pass
        self._is_warm = True
        log.info("ready for live audio")


class VoxtralTranscription:
    """The tokens of one stream of audio, as text. Implements `runtime.transcription.Transcription`."""

    def __init__(self, decoder: StreamingDecoder, transcript: Transcript):
        self._decoder, self._transcript = decoder, transcript

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        yield from self._transcript.deltas(self._decoder.feed(samples))

    def finish(self) -> Iterator[TranscriptDelta]:
        self._transcript.end_audio(self._decoder.seconds)
        yield from self._transcript.deltas(self._decoder.finish())
        yield self._transcript.end()
