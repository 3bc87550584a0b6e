"""Runtime half of the toy family: letters, the decode loop, the task and fixed runs. Imports no torch.

A frame of speech is the logits of its letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from exercises.toy_constants import Constants

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import Bundle
from voxport.runtime.batching import Fill, RowLimit, SlotOutput, Status
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families import Call, RuntimeFamily, tokenizer_paths
from voxport.runtime.families.workload import (
    BenchSettings,
    BenchWorkload,
    ForcedRun,
    TraceWorkload,
    VerificationWorkload,
)
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text_to_speech import TextToSpeech
from voxport.runtime.trace import ArraySpec

END = 0  # the letter that ends a speech
PROMPT = (3, 1, 4, 1, 5)
DECODER = Call(frozenset({"x", "position"}), frozenset({"y"}))


class Letters:
    """The tokenizer: the id of a letter is its place in the file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises UsageError without a file, IntegrityError on a damaged one."""
        if not paths:
            raise UsageError("the bundle has no letters; export from a checkpoint with letters.txt")
        self._letters = paths[0].read_text()
        if len(set(self._letters)) < len(self._letters) or not self._letters:
            raise IntegrityError(f"{paths[0]}: no letters, or one of them twice; export the bundle again")

    def encode(self, text: str) -> list[int]:
        """Raises UsageError on an empty text and on an unknown letter."""
        unknown = sorted(set(text) - set(self._letters))
        if unknown or not text:
            raise UsageError(f"text {text!r}: expected one or more of the letters {self._letters!r}")
        return [self._letters.index(letter) for letter in text]


class LetterDecoder:
    """Reads a prompt, then feeds letters back. `logits` float32 [dim] belong to the next letter."""

    def __init__(self, stream: Stream, constants: Constants) -> None:
        self._stream, self._constants, self.position = stream, constants, 0
        self.logits = np.zeros(constants.dim, np.float32)

    def read(self, ids: Sequence[int]) -> None:
        self._run("prefill", ids)

    def feed(self, letter: int) -> None:
        self._run("decode_step", [letter])

    def samples(self) -> np.ndarray:
        """Samples float32 [dim] of the next letter."""
        return (self._constants.gain * self.logits).astype(np.float32)

    def _run(self, component: str, ids: Sequence[int]) -> None:
        x = np.eye(self._constants.dim, dtype=np.float32)[None, list(ids)]
        inputs = {"x": x, "position": np.array([self.position])}
        self.logits = self._stream.run(component, inputs)["y"][0, -1]
        self.position += len(ids)


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


def teacher_forced_run(
    stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    decoder, logits = LetterDecoder(stream, constants), []
    decoder.read(PROMPT)
    for index in range(steps):
        logits.append(decoder.logits)
        decoder.feed(int(logits[-1].argmax() if forced is None else forced[index, 0]))
    found = np.stack(logits)
    return ForcedRun(codes=found.argmax(axis=1)[:, None], logits=found, hidden=found)


def free_run(stream: Stream, constants: Constants, steps: int) -> np.ndarray:
    """Samples float32 [steps * dim]."""
    return constants.gain * teacher_forced_run(stream, constants, steps).logits.flatten()


def compare(found: np.ndarray, expected: np.ndarray, constants: Constants) -> dict[str, float]:
    return {"largest_difference": float(np.abs(found - expected).max())}


class ToyWorkload:
    prepared = None

    def __init__(
        self, stream: Stream, constants: Constants, settings: BenchSettings, prepared: Arrays | None
    ) -> None:
        self._decoder = LetterDecoder(stream, constants)
        self._decoder.read([1] * settings.prompt_tokens)

    def step(self) -> None:
        self._decoder.feed(int(self._decoder.logits.argmax()))


def _trace(
    engine: Engine, constants: Constants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    decoder = LetterDecoder(engine.stream(), constants)
    decoder.read(inputs["ids"].tolist())
    return {"logits": decoder.logits}


VERIFICATION = VerificationWorkload[Constants](
    teacher_forced_run,
    free_run,
    compare,
)
TRACE = TraceWorkload[Constants](
    inputs=lambda constants: {"ids": ArraySpec(("n",), limits=(constants.dim,))}, run=_trace
)
BENCH = BenchWorkload[Constants](
    first_output="first_sound_s",
    summary="first sound {first_sound_s:.3f} s",
    start=ToyWorkload,
    options=("prompt_tokens",),
    rows_needed=lambda settings, steps: settings.prompt_tokens + steps,
)


def _open(bundle: Bundle, engine: Engine, constants: Constants) -> ToyTextToSpeech:
    return ToyTextToSpeech(engine, constants, Letters(tokenizer_paths(bundle)))


FAMILY = RuntimeFamily[Constants](
    name="toy",
    task=TextToSpeech,
    calls=lambda job: {"prefill": DECODER, "decode_step": DECODER},
    constants=Constants,
    voices=lambda bundle: {},
    open=_open,
    workloads="exercises.toy_runtime",
)
