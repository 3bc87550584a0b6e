"""`SpeechDecoder`: one utterance on a stream of any engine, from its prompt to codes and samples."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.batching import RowLimit
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.prefix_cache import PrefixCache


class Prompt(Protocol):
    """The input of an utterance. Its first `prefix_rows` rows do not depend on its text."""

    @property
    def prefix_rows(self) -> int: ...

    @property
    def rows(self) -> int: ...


PromptOf = TypeVar("PromptOf", bound=Prompt)


class SpeechDecoder(ABC, Generic[PromptOf]):
    """One utterance: its prompt, its `position` in the cache, and the output of the last step, from which the
    next frame is computed. `stream` may be a slot of a batch.
    """

    def __init__(self, stream: Stream):
        self.stream, self.position = stream, 0
        self._decoded = 0  # frames

    @abstractmethod
    def embed_prefix(self, prompt: PromptOf) -> np.ndarray:
        """The rows float32 [prefix_rows, dim] of a prompt."""

    @abstractmethod
    def embed_text(self, prompt: PromptOf) -> np.ndarray:
        """The rows float32 [P, dim] behind the prefix."""

    @abstractmethod
    def keep(self, outputs: Arrays) -> None:
        """Takes the outputs of `prefill` or `decode_step`."""

    def begin(self, prompt: PromptOf) -> None:
        """Raises UsageError if a prompt leaves no room for a frame."""
        check_room(prompt.rows, self.stream.capacity("prefill"))

    def read_prefix(self, prompt: PromptOf, limit: RowLimit) -> Iterator[None]:
        """Reads the prefix of a prompt, and yields between pieces. Raises UsageError like `begin`."""
        self.begin(prompt)
        yield from self._read(self.embed_prefix(prompt), limit)

    def load_prefix(self, prompt: PromptOf, rows: Arrays) -> None:
        """Takes the cache rows of the prefix from an earlier utterance. Raises UsageError like `begin`."""
        self.begin(prompt)
        self.stream.load(rows)
        self.position = prompt.prefix_rows

    def read_text(self, prompt: PromptOf, limit: RowLimit) -> Iterator[None]:
        """Reads what follows the prefix of a prompt, and yields between pieces."""
        yield from self._read(self.embed_text(prompt), limit)

    def _read(self, rows: np.ndarray, limit: RowLimit) -> Iterator[None]:
        while len(rows) > (count := limit()):
            self.prefill(rows[:count])
            yield
            rows = rows[count:]
        self.prefill(rows)

    def prefill(self, embeddings: np.ndarray) -> Arrays:
        """Feeds embeddings float32 [P, dim] from `position` on."""
        inputs = {"embeddings": embeddings[None], "position": np.array([self.position])}
        outputs = self.stream.run_rows("prefill", inputs)
        self.keep(outputs)
        self.position += len(embeddings)
        return outputs

    def advance(self, outputs: Arrays) -> None:
        """Takes the outputs of `decode_step` for this utterance."""
        self.keep(outputs)
        self.position += 1

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another frame."""
        return self.position < self.stream.capacity("decode_step")

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> samples float32 [T * samples_per_frame]."""
        if not len(codes):
            return np.zeros(0, np.float32)
        inputs = {"codes": codes[None], "position": np.array([self._decoded])}
        audio = self.stream.run_rows("codec_step", inputs)["audio"]
        self._decoded += len(codes)
        return np.asarray(audio[0])


def check_room(rows: int, capacity: int) -> None:
    """Raises UsageError if a prompt of `rows` rows leaves no room for a frame in the cache."""
    if rows >= capacity:
        raise UsageError(
            f"text: its prompt of {rows} rows leaves no room in a cache of {capacity}; "
            "shorten the text or export with a larger cache length"
        )


def read_whole(decoder: SpeechDecoder[PromptOf], prompt: PromptOf, stored: Arrays | None = None) -> Arrays:
    """Reads a prompt. Returns the cache rows of its prefix.

    `stored` are rows that were returned for a prompt with the same prefix, which is not read again.
    """
    if stored is None:
        for _ in decoder.read_prefix(prompt, lambda: sys.maxsize):
            pass
        stored = decoder.stream.save("prefill", prompt.prefix_rows)
    else:
        decoder.load_prefix(prompt, stored)
    for _ in decoder.read_text(prompt, lambda: sys.maxsize):
        pass
    return stored


@dataclass(frozen=True)
class StoredPrefix:
    """The prefix of a prompt: `key` is what its rows are computed from. `rows` were stored before, or are
    None. A request that waits holds them.
    """

    key: bytes
    is_storable: bool
    rows: Arrays | None


def read_prompt(
    decoder: SpeechDecoder[PromptOf],
    prompt: PromptOf,
    prefix: StoredPrefix,
    cache: PrefixCache,
    limit: RowLimit,
) -> Iterator[None]:
    """Reads a prompt, and yields between pieces. Reads no file.

    Rows of its prefix are the stored ones, or those that `cache` has in memory. Others are computed and added
    to `cache`.
    """
    rows = cache.kept(prefix.key) if prefix.rows is None else prefix.rows
    if rows is None:
        yield from decoder.read_prefix(prompt, limit)
        keep = cache.save if prefix.is_storable else cache.keep
        keep(prefix.key, decoder.stream.save("prefill", prompt.prefix_rows))
        yield
    else:
        decoder.load_prefix(prompt, rows)
    yield from decoder.read_text(prompt, limit)


Constants = TypeVar("Constants")
Decoder = TypeVar("Decoder", bound=SpeechDecoder[Any])
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
