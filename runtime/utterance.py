"""What utterances of every family have: a prompt that is read in pieces, and frames that are spoken."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from voxport.runtime.batching import Fill, RowLimit, SlotOutput, Status
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.prefix_cache import PrefixCache
from voxport.runtime.runaway import RunawayGuard
from voxport.runtime.slots import move_states
from voxport.runtime.speech_request import SpeechRequest


def read_pieces(rows: np.ndarray, limit: RowLimit, read: Callable[[np.ndarray], object]) -> Iterator[None]:
    """Calls `read` with all rows of a prompt, a piece at a time, and yields between the calls."""
    while len(rows) > (count := limit()):
        read(rows[:count])
        yield
        rows = rows[count:]
    read(rows)


PromptIn = TypeVar("PromptIn", contravariant=True)
Prompt = TypeVar("Prompt")


class PromptDecoder(Protocol[PromptIn]):
    """Reads a prompt: its prefix, or stored cache rows of the prefix, and then its text."""

    stream: Stream

    def read_prefix(self, prompt: PromptIn, limit: RowLimit, /) -> Iterator[None]: ...

    def load_prefix(self, prompt: PromptIn, rows: Arrays, /) -> None: ...

    def read_text(self, prompt: PromptIn, limit: RowLimit, /) -> Iterator[None]: ...


def read_whole(
    decoder: PromptDecoder[Prompt], prompt: Prompt, prefix_rows: int, stored: Arrays | None = None
) -> Arrays:
    """Reads a prompt whose prefix has so many rows. Returns the cache rows of its prefix.

    `stored` are rows that were returned for a prompt with the same prefix, which is not read again.
    """
    if stored is None:
        for _ in decoder.read_prefix(prompt, lambda: sys.maxsize):
            pass
        stored = decoder.stream.save("prefill", prefix_rows)
    else:
        decoder.load_prefix(prompt, stored)
    for _ in decoder.read_text(prompt, lambda: sys.maxsize):
        pass
    return stored


@dataclass(frozen=True)
class PromptPrefix:
    """The part of a prompt that does not depend on its text: what its rows are computed from, their number,
    and whether they may be stored on disk. `stored` are rows that were stored before; a request that
    waits holds them.
    """

    key: bytes
    rows: int
    is_storable: bool = True
    stored: Arrays | None = None

    def load(self, cache: PrefixCache) -> "PromptPrefix":
        """The prefix with its stored rows, if `cache` has them. May read a file."""
        return replace(self, stored=cache.load(self.key))


def read_prompt(
    decoder: PromptDecoder[Prompt], prompt: Prompt, prefix: PromptPrefix, cache: PrefixCache, limit: RowLimit
) -> Iterator[None]:
    """Reads a prompt, and yields between pieces. Reads no file.

    Rows of its prefix are those that it was loaded with, or those that `cache` has in memory. Others are
    computed and added to `cache`.
    """
    rows = cache.kept(prefix.key) if prefix.stored is None else prefix.stored
    if rows is None:
        yield from decoder.read_prefix(prompt, limit)
        keep = cache.save if prefix.is_storable else cache.keep
        keep(prefix.key, decoder.stream.save("prefill", prefix.rows))
        yield
    else:
        decoder.load_prefix(prompt, rows)
    yield from decoder.read_text(prompt, limit)


class UtteranceDecoder(Protocol):
    """The decoder of an utterance: the stream of its slot, and the positions that it has used."""

    stream: Stream
    position: int

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another frame."""

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> samples float32 [n]."""


def decode_frames(stream: Stream, codes: np.ndarray, position: int) -> np.ndarray:
    """codes int64 [T, K] of the frames from `position` on -> samples float32 [T * samples_per_frame]."""
    if not len(codes):
        return np.zeros(0, np.float32)
    inputs = {"codes": codes[None], "position": np.array([position])}
    return np.asarray(stream.run_rows("codec_step", inputs)["audio"][0])


class FrameCollector:
    """Collects frames into chunks, and applies the limits of the request.

    A request without a budget is not guarded.
    """

    def __init__(
        self, decoder: UtteranceDecoder, request: SpeechRequest, estimated_frames: Callable[[str], float]
    ):
        """`estimated_frames`: see `TextToSpeech`."""
        self._decoder, self._request = decoder, request
        self._budget = request.budget_frames(estimated_frames(request.text))
        self._guard = RunawayGuard() if request.budget is not None else None
        self._waiting: list[np.ndarray] = []
        self._frames = 0

    def push(self, codes: np.ndarray | None) -> SlotOutput:
        """Takes the codes int64 [K] of a frame; None if the model ended the speech.

        Gives samples if a chunk is full or the speech ends.
        """
        final: Status | None = Status.END
        if codes is not None:
            self._waiting.append(codes)
            self._frames += 1
            final = self._limit_reached() or (self._guard.add_codes(codes) if self._guard else None)
        if not self._waiting or not (final or len(self._waiting) == self._request.chunk_frames):
            return SlotOutput(None, final)
        samples, frames = self._decoder.decode(np.stack(self._waiting)), len(self._waiting)
        self._waiting = []
        silent = self._guard.add_samples(samples, frames) if self._guard else None
        if silent is None or (silent == frames and final and codes is not None):
            return SlotOutput(samples, final)
        # frames of the chunk behind the silence are dropped, so the speech does not depend on its size
        return SlotOutput(samples[: silent * (len(samples) // frames)], Status.SILENCE)

    def _limit_reached(self) -> Status | None:
        if not self._decoder.has_room:
            return Status.CACHE
        if self._frames >= self._budget:
            return Status.BUDGET
        return Status.LIMIT if self._frames == self._request.max_frames else None


Constants = TypeVar("Constants")
Decoder = TypeVar("Decoder", bound=UtteranceDecoder)
Noise = TypeVar("Noise")


@dataclass(frozen=True)
class FrameLoop(Generic[Constants, Decoder, Noise]):
    """The loop of a family from frame to frame, for the slots of a batch. Each slot has a decoder.

    draw(generator, constants): the noise of a frame of one slot.
    frame(stream, decoders, noise): codes int64 [slots, K] of the next frames. A call that raises can be
        repeated.
    step(stream, decoders, codes): one decode step on these codes. One that raises can be repeated.
    batched: components that one call runs for all slots.
    end_code, first_code: code 0 with which the model ends the speech, and the least code of any other frame.
    """

    draw: Callable[[np.random.Generator, Constants], Noise]
    frame: Callable[[Stream, Sequence[Decoder], Sequence[Noise]], np.ndarray]
    step: Callable[[Stream, Sequence[Decoder], np.ndarray], None]
    batched: tuple[str, ...]
    end_code: int
    first_code: int


class Utterance(Generic[Decoder, Noise]):
    """A request that is being spoken: its decoder, noise and frames. `codes` int64 [K] are the last frame."""

    codes: np.ndarray

    def __init__(
        self,
        decoder: Decoder,
        seed: int,
        frames: FrameCollector,
        draw: Callable[[np.random.Generator], Noise],
    ):
        self.decoder, self._frames, self._draw = decoder, frames, draw
        self._generator = np.random.default_rng(seed)
        self._noise: Noise | None = None

    def noise(self) -> Noise:
        """Noise of the next frame. It stays the same until `push`."""
        if self._noise is None:
            self._noise = self._draw(self._generator)
        return self._noise

    def push(self, end_code: int) -> SlotOutput:
        """Takes the codes of a new frame."""
        self._noise = None
        return self._frames.push(None if self.codes[0] == end_code else self.codes)


class UtteranceSlots(ABC, Generic[Constants, Decoder, Noise]):
    """The operations of `runtime.batching.CodeSlots` that every family has: utterances by slot of one
    batched stream.
    """

    def __init__(
        self,
        stream: Stream,
        constants: Constants,
        loop: FrameLoop[Constants, Decoder, Noise],
        estimated_frames: Callable[[str], float],
    ):
        """`estimated_frames`: see `TextToSpeech`."""
        self._stream, self.slots, self._constants = stream, stream.batch, constants
        self._loop, self._estimated_frames = loop, estimated_frames
        self._utterances: dict[int, Utterance[Decoder, Noise]] = {}  # by slot

    @abstractmethod
    def prepare(self, request: SpeechRequest) -> Fill:
        """See `SlotDecoder`."""

    def _begin(self, slot: int, decoder: Decoder, request: SpeechRequest) -> None:
        """Puts a request in a slot. Its prompt is read next."""
        frames = FrameCollector(decoder, request, self._estimated_frames)
        draw = lambda generator: self._loop.draw(generator, self._constants)
        self._utterances[slot] = Utterance(decoder, request.seed, frames, draw)

    def feed(self, count: int, first: int = 0) -> None:
        utterances = self._from(count, first)
        codes = np.stack([utterance.codes for utterance in utterances])
        self._step(self._view(count, first), utterances, codes)

    def _step(
        self, stream: Stream, utterances: Sequence[Utterance[Decoder, Noise]], codes: np.ndarray
    ) -> None:
        self._loop.step(stream, [utterance.decoder for utterance in utterances], codes)

    def decode(self, count: int, first: int = 0) -> None:
        utterances = self._from(count, first)
        codes = self._next_codes(self._view(count, first), utterances)
        for utterance, row in zip(utterances, codes, strict=True):
            utterance.codes = row

    def _next_codes(self, stream: Stream, utterances: Sequence[Utterance[Decoder, Noise]]) -> np.ndarray:
        noise = [utterance.noise() for utterance in utterances]
        return self._loop.frame(stream, [utterance.decoder for utterance in utterances], noise)

    def take(self, slot: int) -> SlotOutput:
        return self._utterances[slot].push(self._loop.end_code)

    def codes(self, slot: int) -> np.ndarray:
        return self._utterances[slot].codes

    def replace_codes(self, slot: int, codes: np.ndarray) -> None:
        self._utterances[slot].codes = codes

    def free(self, slot: int) -> None:
        self._utterances.pop(slot, None)

    def move(self, source: int, target: int) -> None:
        decoder = self._utterances[source].decoder
        decoder.stream = move_states(self._stream, source, target, decoder.position)
        self._utterances[target] = self._utterances.pop(source)

    def _from(self, count: int, first: int) -> list[Utterance[Decoder, Noise]]:
        return [self._utterances[slot] for slot in range(first, first + count)]

    def _view(self, count: int, first: int) -> Stream:
        """The slots `first` to `first + count - 1` of the stream: the first ones, or one alone."""
        return self._stream.slot(first) if first else self._stream.first(count)
