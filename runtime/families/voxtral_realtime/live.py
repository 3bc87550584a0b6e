"""`LiveSlots`: live streams in the slots of one batched stream of the decoder. Implements `LiveBatch`."""

from collections.abc import Callable

import numpy as np

from voxport.runtime.engines.base import Stream
from voxport.runtime.families.voxtral_realtime.decoder import StreamingDecoder
from voxport.runtime.families.voxtral_realtime.transcript import Transcript
from voxport.runtime.slots import Slots, move_states
from voxport.runtime.transcription import LiveStream, TranscriptDelta

NewDecoder = Callable[[int | None, Stream], StreamingDecoder]


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

    def begin(self, delay_ms: int | None = None) -> LiveStream:
        decoder = self._new_decoder(delay_ms, self._batch.slot(len(self._slots)))
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
