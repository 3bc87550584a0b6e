"""The Voxtral-Realtime family: speech to text."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Lock
from typing import Unpack

import numpy as np

from voxport.bundle.constants.voxtral_realtime import ENCODER, LANGUAGES, LIVE_ENCODER, RealtimeConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.tekken import load_pieces, tekken_path
from voxport.runtime.batching import max_slots
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families import Call, RuntimeFamily, tokenizer_paths
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, Silence, StreamingDecoder
from voxport.runtime.families.voxtral_realtime.transcript import Transcript
from voxport.runtime.slots import Slots, move_states
from voxport.runtime.speech_to_text import (
    LiveBatch,
    LiveStream,
    SpeechToText,
    TranscriptDelta,
    TranscriptionOptions,
)

NewDecoder = Callable[[int | None, Stream], StreamingDecoder]
BATCHED = ("embed_tokens", "decode_step")  # components that one call runs for all live streams
STEP = Call(frozenset({"embeddings", "position", "delay"}), frozenset({"hidden", "logits"}))
log = logging.getLogger(__name__)


class SlotStream:
    """One live stream: its decoder and its text."""

    def __init__(self, decoder: StreamingDecoder, transcript: Transcript):
        self.decoder, self.transcript = decoder, transcript
        self._is_finished = False

    def feed(self, samples: np.ndarray) -> None:
        self.decoder.encode_samples(samples)

    def finish(self) -> None:
        self.transcript.end_audio(self.decoder.seconds)
        self.decoder.encode_end()
        self._is_finished = True

    @property
    def is_due(self) -> bool:
        return self.decoder.is_due

    def step(self, logits: np.ndarray | None) -> list[TranscriptDelta]:
        """Takes the logits of a decode step; None: reads the prompt. Returns the text that is complete."""
        token = self.decoder.read_prompt() if logits is None else self.decoder.advance(logits)
        deltas = list(self.transcript.deltas([token]))
        if self._is_finished and not self.is_due:
            deltas.append(self.transcript.end())
        return deltas


class LiveSlots:
    """The encoder of each stream has states of its own, which are not moved."""

    def __init__(self, batch: Stream, new_decoder: NewDecoder, new_transcript: Callable[[], Transcript]):
        """`new_decoder(delay_ms, stream)` is behind the silence in front of the audio."""
        self._batch, self._new_decoder, self._new_transcript = batch, new_decoder, new_transcript
        self._slots: Slots[SlotStream] = Slots(batch.batch, self._move)

    @property
    def has_room(self) -> bool:
        return self._slots.has_room

    def begin(self, **options: Unpack[TranscriptionOptions]) -> LiveStream:
        decoder = self._new_decoder(options.get("delay_ms"), self._batch.slot(len(self._slots)))
        stream = SlotStream(decoder, self._new_transcript())
        self._slots.take(stream)
        return stream

    def step(self) -> dict[LiveStream, list[TranscriptDelta] | Exception]:
        """One position of each stream that is due. The prompt of a stream is read alone."""
        due = {slot: stream for slot, stream in self._slots.items.items() if stream.is_due}
        found: dict[LiveStream, list[TranscriptDelta] | Exception] = {}

        def take(slots: list[int], logits: dict[int, np.ndarray]) -> None:
            for slot in slots:
                try:
                    found[due[slot]] = due[slot].step(logits.get(slot))
                except Exception as error:  # belongs to this stream, whatever it is
                    found[due[slot]] = error

        steps = sorted(slot for slot, stream in due.items() if stream.decoder.has_read_prompt)
        # each takes its logits before the next call, which may overwrite what is behind its position
        errors = self._slots.run(lambda slots: take(slots, self._decode(slots)), steps)
        found |= {due[slot]: error for slot, error in errors.items()}
        take([slot for slot in due if slot not in steps], {})
        return found

    def end(self, stream: LiveStream) -> None:
        self._slots.free(stream)
        for error in self._slots.compact().values():
            raise error

    def _decode(self, slots: list[int]) -> dict[int, np.ndarray]:
        """Logits float32 [1, vocab] by slot, of a decode step of these slots. Others keep their states."""
        decoders = [self._slots.items[slot].decoder for slot in range(slots[-1] + 1)]
        inputs = {slot: decoders[slot].next_input() for slot in slots}
        filler = 0, np.zeros_like(inputs[slots[0]][1])
        rows = [inputs.get(slot, filler) for slot in range(len(decoders))]
        ids, audio = np.array([[token] for token, _ in rows]), np.concatenate([each for _, each in rows])
        stream = self._batch.first(len(decoders))
        text = stream.run("embed_tokens", {"ids": ids})["embeddings"]
        arrays = {
            "embeddings": audio + text,
            "position": np.array([decoder.position for decoder in decoders]),
            "delay": np.array([decoder.delay for decoder in decoders]),
        }
        found = stream.run_active("decode_step", arrays, slots)["logits"]
        return {slot: found[slot : slot + 1] for slot in slots}

    def _move(self, source: int, target: int) -> None:
        decoder = self._slots.items[target].decoder
        decoder.stream = move_states(self._batch, source, target, decoder.position, "decode_step")


class VoxtralSpeechToText(SpeechToText):
    """Each transcription uses a stream of its own on the shared engine."""

    def __init__(
        self,
        engine: Engine,
        constants: RealtimeConstants,
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

    def open_files(self) -> None:
        self._engine.open_files()

    def check_live(self) -> None:
        if not self._is_live:
            raise UsageError("live: this bundle is for recordings; export it with --streaming", field="live")

    @property
    def max_live(self) -> int:
        return self._max_live

    def begin(self, **options: Unpack[TranscriptionOptions]) -> "VoxtralTranscription":
        self._engine.open_ahead()
        live = options.get("live", False)
        delay = self._constants.delay_index(options.get("delay_ms"), live)
        if live:
            self.check_live()
            self._warm_up()
        chunk = options.get("chunk_tokens") or (1 if live else None)
        decode_options = DecodeOptions(delay, chunk, blank_penalty=options.get("blank_penalty", False))
        decoder = StreamingDecoder(self._engine.stream(), self._constants, decode_options)
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
    """The tokens of one stream of audio, as text. Implements `runtime.speech_to_text.Transcription`."""

    def __init__(self, decoder: StreamingDecoder, transcript: Transcript):
        self._decoder, self._transcript = decoder, transcript

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        yield from self._transcript.deltas(self._decoder.feed(samples))

    def finish(self) -> Iterator[TranscriptDelta]:
        self._transcript.end_audio(self._decoder.seconds)
        yield from self._transcript.deltas(self._decoder.finish())
        yield self._transcript.end()


def _open(bundle: Bundle, engine: Engine, constants: RealtimeConstants) -> VoxtralSpeechToText:
    is_live = LIVE_ENCODER in {entry.name for entry in bundle.components}
    max_live = max_slots(bundle.components, BATCHED)
    token_bytes = load_pieces(tekken_path(tokenizer_paths(bundle)))
    return VoxtralSpeechToText(engine, constants, token_bytes, is_live, max_live, bundle.job.languages)


FAMILY = RuntimeFamily[RealtimeConstants](
    name="voxtral_realtime",
    task=SpeechToText,
    calls=lambda job: {
        "embed_tokens": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        ENCODER: Call(frozenset({"mel", "position"}), frozenset({"embeddings"}), frozenset({"T"})),
        "prefill": replace(STEP, dims=frozenset({"S"})),
        "decode_step": STEP,
    },
    constants=RealtimeConstants,
    voices=lambda bundle: {},
    open=_open,
    workloads="voxport.runtime.families.voxtral_realtime.workload",
    server_options={"streaming": True},  # live audio
)
