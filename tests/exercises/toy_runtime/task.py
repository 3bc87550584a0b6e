"""The text-to-speech task of the toy family. A frame of speech is the logits of its letter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from exercises.toy_constants import Constants
from exercises.toy_runtime.decoder import END, LetterDecoder, Letters

from voxport.bundle.errors import UsageError
from voxport.runtime.batching import Fill, RowLimit, SlotOutput, Status
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text_to_speech import TextToSpeech


class ToyTextToSpeech(TextToSpeech):
    sample_rate = 400
    max_slots = 1

    def __init__(self, engine: Engine, constants: Constants, letters: Letters) -> None:
        self._engine, self._constants, self._letters = engine, constants, letters

    @property
    def samples_per_frame(self) -> int:
        return self._constants.dim

    def estimated_frames(self, text: str) -> float:
        return len(text)

    def voices(self) -> dict[str, int]:
        return {}

    def slot_decoder(self, slots: int) -> ToySlots:
        return ToySlots(self._engine.batched(slots), self._constants, self._letters)


class ToySlots:
    """The operations of `runtime.batching.SlotDecoder`, for one slot."""

    slots = 1

    def __init__(self, stream: Stream, constants: Constants, letters: Letters) -> None:
        self._stream, self._constants, self._letters = stream, constants, letters

    def prepare(self, request: SpeechRequest) -> Fill:
        ids = self._letters.encode(request.text)
        room = self._stream.capacity("decode_step") - len(ids)
        if room < 1:
            raise UsageError(f"text of {len(ids)} letters: the cache leaves no room for speech; shorten it")
        return partial(self._read, ids, min(request.max_frames, room))

    def _read(self, ids: list[int], frames: int, slot: int, limit: RowLimit) -> Iterator[None]:
        self._stream.reset()
        self._decoder, self._left = LetterDecoder(self._stream, self._constants), frames
        self._decoder.read(ids)
        return iter(())  # there are no other pieces

    def feed(self, count: int, first: int = 0) -> None:
        self._decoder.feed(self._letter)

    def decode(self, count: int, first: int = 0) -> None:
        self._letter = int(self._decoder.logits.argmax())

    def take(self, slot: int) -> SlotOutput:
        self._left -= 1
        final = Status.END if self._letter == END else None if self._left else Status.LIMIT
        return SlotOutput(self._decoder.samples(), final)

    def free(self, slot: int) -> None:
        self._left = 0

    def move(self, source: int, target: int) -> None: ...  # not called for one slot
