"""`LiveSlots`: live streams in the slots of one batched stream of the decoder. Implements `runtime.live`."""

from collections.abc import Callable

import numpy as np

from voxport.runtime.engines.base import Stream
from voxport.runtime.families.voxtral_realtime.decoder import StreamingDecoder, batched_step
from voxport.runtime.families.voxtral_realtime.transcript import Transcript
from voxport.runtime.live import LiveStream
from voxport.runtime.transcription import TranscriptDelta

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

    def take(self, token: int) -> list[TranscriptDelta]:
        """The text that the next token completes."""
        deltas = list(self.transcript.deltas([token]))
        if self._is_finished and not self.is_due:
            deltas.append(self.transcript.end())
        return deltas


class LiveSlots:
    """The streams have the first slots of the batch. A freed slot takes the stream of the last one.

    The encoder of each stream has states of its own, which are not moved.
    """

    def __init__(self, batch: Stream, new_decoder: NewDecoder, new_transcript: Callable[[], Transcript]):
        """`new_decoder(delay_ms, stream)` is behind the silence in front of the audio."""
        self._batch, self._new_decoder, self._new_transcript = batch, new_decoder, new_transcript
        self._streams: list[SlotStream] = []  # by slot

    @property
    def has_room(self) -> bool:
        return len(self._streams) < self._batch.batch

    def begin(self, delay_ms: int | None = None) -> LiveStream:
        decoder = self._new_decoder(delay_ms, self._batch.slot(len(self._streams)))
        self._streams.append(SlotStream(decoder, self._new_transcript()))
        return self._streams[-1]

    def step(self) -> dict[LiveStream, list[TranscriptDelta] | Exception]:
        found: dict[LiveStream, list[TranscriptDelta] | Exception] = {}
        tokens = batched_step(self._batch, [stream.decoder for stream in self._streams])
        for slot, token in tokens.items():
            stream = self._streams[slot]
            try:
                found[stream] = token if isinstance(token, Exception) else stream.take(token)
            except Exception as error:  # belongs to this stream, whatever it is
                found[stream] = error
        return found

    def end(self, stream: LiveStream) -> None:
        slot = next(slot for slot, each in enumerate(self._streams) if each is stream)
        last = self._streams.pop()
        if last is not stream:
            source = len(self._streams)
            self._batch.move(source, slot, last.decoder.position, "decode_step")
            last.decoder.stream = self._batch.slot(slot)
            self._streams[slot] = last
