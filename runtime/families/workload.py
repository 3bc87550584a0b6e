"""Runs of a family that verification, traces and the benchmark need. A bundle that speaks imports none."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from voxport.bundle.bounds import FRAME_SECONDS
from voxport.bundle.manifest import Bundle, FamilyConstants
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.speech_decoder import Decoder, FrameLoop, Noise, read_whole
from voxport.runtime.trace import ArraySpec

Constants = TypeVar("Constants", bound=FamilyConstants)
Figures = dict[str, Any]  # a JSON object of the benchmark, whose keys the family chooses


@dataclass(frozen=True)
class ForcedRun:
    """The result of a fixed run of n steps, for comparisons.

    `codes` int64 [n, K]: column 0 is `first` + the argmax of the row of `logits` float32 [n, R]. The other
    columns, if any, are the argmax of `other_logits` float32 [n, K - 1, R'], or are rounded from `values`
    float32 [n, K - 1]. `value_calls` is the number of graph calls that compute one value. `hidden` float32
    [n, D] measures the effect of quantisation.
    """

    codes: np.ndarray
    logits: np.ndarray
    hidden: np.ndarray
    first: int = 0
    values: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    value_calls: int = 1
    other_logits: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))


@dataclass(frozen=True)
class ChoiceResult:
    """Whether choices that a graph makes itself are right, and what was measured as text."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class BenchSettings:
    """Inputs of a benchmark: `voice` float32 [rows, dim] (no rows without voices), and `prompt_tokens` ids of
    text.
    """

    voice: np.ndarray
    prompt_tokens: int = 20


@dataclass(frozen=True)
class TraceWorkload(Generic[Constants]):
    """Computes every intermediate value of one run from given inputs.

    inputs(constants): the arrays that `run` takes, by name.
    run(engine, constants, inputs, live, tokenizer_files): intermediate values by name. `live` runs in steps
        of 80 ms if the family also has longer calls. The files belong to the bundle or checkpoint.
    """

    inputs: Callable[[Constants], dict[str, ArraySpec]]
    run: Callable[[Engine, Constants, Arrays, bool, Sequence[Path]], Arrays]


@dataclass(frozen=True)
class Rollout:
    """n frames that continue from their own codes: `codes` int64 [n, K], `samples` float32 [n * S]."""

    codes: np.ndarray
    samples: np.ndarray


@dataclass(frozen=True)
class VerificationWorkload(Generic[Constants]):
    """Fixed runs whose results verification compares between two streams.

    teacher_forced_run(stream, constants, steps, forced): runs `steps` steps from a fixed input. `forced`
        int64 [steps, K], if given, replaces the fed-back codes. Then each graph runs all its steps before the
        next graph starts if the model allows it.
    free_run(stream, constants, steps): the output of a free run of at most `steps` steps: samples or tokens.
    compare(found, expected, constants): distances between two results of `free_run`.
    check_choices(found, expected, constants, bar): checks of the outputs of kind CHOICE, on a stream of the
        artifact and one of eager; `bar` is the bar of the lowering error.
    rollout(stream, constants, frames): a free run of exactly so many frames; None if frames have few codes
        that are fed back.
    """

    teacher_forced_run: Callable[[Stream, Constants, int, np.ndarray | None], ForcedRun]
    free_run: Callable[[Stream, Constants, int], np.ndarray]
    compare: Callable[[np.ndarray, np.ndarray, Constants], dict[str, float]]
    check_choices: Callable[[Stream, Stream, Constants, float], Iterable[ChoiceResult]] = (
        lambda found, expected, constants, bar: ()
    )
    rollout: Callable[[Stream, Constants, int], Rollout] | None = None


class Workload(Protocol):
    """An endless run in steps of `BenchWorkload.step_seconds`. Work that precedes the first step is done on
    construction.

    `prepared` are values that another workload with the same settings can reuse.
    """

    @property
    def prepared(self) -> Arrays | None: ...

    def step(self) -> None: ...


def no_check(bundle: Bundle) -> None:
    """Every bundle can be timed."""


def no_voice(bundle: Bundle, constants: FamilyConstants) -> np.ndarray:
    return np.zeros((0, 0), np.float32)


def frame_seconds(constants: FamilyConstants) -> float:
    return FRAME_SECONDS


def no_rows(settings: BenchSettings, steps: int) -> int:
    """A sliding window has room for every step."""
    return 0


@dataclass(frozen=True)
class BenchWorkload(Generic[Constants]):
    """What the benchmark times.

    first_output: JSON key of the seconds until the first output.
    summary: a format string with this key, for the text of the result.
    start(stream, constants, settings, prepared): a workload on an empty stream. `prepared` comes from an
        earlier workload, or is None.
    options: names of the `bench` options that apply to the family.
    batched: components that one call runs for all slots of a batch.
    check(bundle): raises UsageError if the bundle cannot be timed.
    voice(bundle, constants): the voice to time, float32 [rows, dim]; no rows if the family or the bundle
        has no voices.
    rows_needed(settings, steps): rows of the decoder's cache for `steps` steps.
    step_seconds(constants): seconds of audio that a step stands for.
    """

    first_output: str
    summary: str
    start: Callable[[Stream, Constants, BenchSettings, Arrays | None], Workload]
    options: tuple[str, ...] = ()
    batched: tuple[str, ...] = ()
    check: Callable[[Bundle], None] = no_check
    voice: Callable[[Bundle, Constants], np.ndarray] = no_voice
    rows_needed: Callable[[BenchSettings, int], int] = no_rows
    step_seconds: Callable[[Constants], float] = frame_seconds


BeginSpeech = Callable[[Stream, Constants, BenchSettings], tuple[Decoder, Any]]
"""`begin(stream, constants, settings)` returns a decoder and its prompt."""


def speech_bench(
    loop: FrameLoop[Constants, Decoder, Noise],
    begin: BeginSpeech[Constants, Decoder],
    fixed_rows: int,
    voice: Callable[[Bundle, Constants], np.ndarray] = no_voice,
    condition: str = "",
) -> BenchWorkload[Constants]:
    """For a family that speaks.

    `fixed_rows` are the rows of a prompt besides voice and text. `condition`: of the time to the first sound.
    """

    def rows_needed(settings: BenchSettings, steps: int) -> int:
        return len(settings.voice) + settings.prompt_tokens + steps + fixed_rows

    return BenchWorkload(
        first_output="first_sound_s",
        summary=f"first sound {{first_sound_s:.2f}} s after {{prompt_tokens}} ids{condition}",
        start=partial(SpeechWorkload, loop, begin),
        options=("streams", "prompt_tokens"),
        batched=loop.batched,
        voice=voice,
        rows_needed=rows_needed,
    )


class SpeechWorkload(Generic[Constants, Decoder, Noise]):
    """A frame of each slot of a stream in a step. Every code is fed back, and the end does not stop it.

    The codec runs slot by slot. `prepared` are the cache rows of the prefix of the prompts.
    """

    def __init__(
        self,
        loop: FrameLoop[Constants, Decoder, Noise],
        begin: BeginSpeech[Constants, Decoder],
        stream: Stream,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
    ):
        self._loop, self._stream, self.prepared = loop, stream, prepared
        self._constants = constants
        self._decoders = list[Decoder]()
        for slot in range(stream.batch):
            part = stream.slot(slot) if stream.batch > 1 else stream
            decoder, prompt = begin(part, constants, settings)
            self.prepared = read_whole(decoder, prompt, self.prepared)
            self._decoders.append(decoder)
        if stream.batch == 1:
            self._stream = self._decoders[0].stream  # a family may wrap it
        self._generators = [np.random.default_rng(1) for _ in self._decoders]
        self._codes: np.ndarray | None = None

    def step(self) -> None:
        if self._codes is not None:
            self._loop.step(self._stream, self._decoders, self._codes)
        noise = [self._loop.draw(generator, self._constants) for generator in self._generators]
        found = self._loop.frame(self._stream, self._decoders, noise)
        self._codes = np.maximum(found, self._loop.first_code)
        for slot, decoder in enumerate(self._decoders):
            decoder.decode(self._codes[slot : slot + 1])
