"""What utterances of every family have: a prompt that is read in pieces, and frames that are spoken."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from voxport.runtime.batching import RowLimit, SlotOutput, Status
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

    @property
    def stream(self) -> Stream: ...

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


class SlotDecoderState(Protocol):
    """The decoder of an utterance in a slot: the stream of the slot, and the positions that it has used."""

    stream: Stream
    position: int


class SlotUtterance(Protocol):
    """A request that is being spoken. `codes` int64 [K] are the last frame."""

    codes: np.ndarray

    @property
    def decoder(self) -> SlotDecoderState: ...

    def push(self) -> SlotOutput:
        """Takes the codes of a new frame."""


AnyUtterance = TypeVar("AnyUtterance", bound=SlotUtterance)


class UtteranceSlots(ABC, Generic[AnyUtterance]):
    """The operations of `runtime.batching.CodeSlots` that every family has: utterances by slot of one
    batched stream.
    """

    def __init__(self, stream: Stream):
        self._stream, self.slots = stream, stream.batch
        self._utterances: dict[int, AnyUtterance] = {}  # by slot

    @abstractmethod
    def _step(self, stream: Stream, utterances: Sequence[AnyUtterance], codes: np.ndarray) -> None:
        """Runs one decode step on codes int64 [slots, K]. One that raises can be repeated."""

    @abstractmethod
    def _next_codes(self, stream: Stream, utterances: Sequence[AnyUtterance]) -> np.ndarray:
        """Codes int64 [slots, K] of the next frames. A call that raises can be repeated."""

    def feed(self, count: int, first: int = 0) -> None:
        utterances = self._from(count, first)
        codes = np.stack([utterance.codes for utterance in utterances])
        self._step(self._view(count, first), utterances, codes)

    def decode(self, count: int, first: int = 0) -> None:
        utterances = self._from(count, first)
        codes = self._next_codes(self._view(count, first), utterances)
        for utterance, row in zip(utterances, codes, strict=True):
            utterance.codes = row

    def take(self, slot: int) -> SlotOutput:
        return self._utterances[slot].push()

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

    def _from(self, count: int, first: int) -> list[AnyUtterance]:
        return [self._utterances[slot] for slot in range(first, first + count)]

    def _view(self, count: int, first: int) -> Stream:
        """The slots `first` to `first + count - 1` of the stream: the first ones, or one alone."""
        return self._stream.slot(first) if first else self._stream.first(count)


class FrameDecoder(Protocol):
    """The utterance of a family. `has_room` is whether the cache holds another frame."""

    @property
    def has_room(self) -> bool: ...

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
        self, decoder: FrameDecoder, request: SpeechRequest, estimated_frames: Callable[[str], float]
    ):
        """`estimated_frames` is that of the task."""
        self._decoder, self._request = decoder, request
        self._budget = request.budget_frames(estimated_frames(request.text))
        self._guard = RunawayGuard() if request.budget is not None else None
        self._waiting: list[np.ndarray] = []
        self._frames = 0

    def push(self, codes: np.ndarray | None) -> SlotOutput:
        """Takes the codes int64 [K] of a frame; None where the model ended the speech.

        Gives samples where a chunk is full or the speech ends.
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
