"""Runs of a family that verification, traces and the benchmark need. A bundle that speaks imports none."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle, ComponentEntry, FamilyConstants
from voxport.runtime.batching import max_slots
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.speech_decoder import Decoder, FrameLoop, Noise, read_whole
from voxport.runtime.trace import ArraySpec

FIRST_SOUND = "first_sound_s"
Constants = TypeVar("Constants", bound=FamilyConstants)
Figures = dict[str, Any]  # a JSON object of the benchmark, whose keys the family chooses
StartSteps = Callable[[Stream], Callable[[], None]]
"""`start(stream)` prepares a run on the stream and returns the function that computes its next step."""
TimeSteps = Callable[[Stream, StartSteps], tuple[float, dict[str, float]]]
"""`time(stream, start)` returns the median seconds of a step, and the median ms of a call of each
component.
"""


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

    `counts` are the batch sizes to time as well: slots of a batched stream, or audio chunks of one encoder
    call.
    """

    voice: np.ndarray
    prompt_tokens: int = 20
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class TraceWorkload(Generic[Constants]):
    """Computes every intermediate value of one run from given inputs.

    inputs(constants): the arrays that `run` takes, by name.
    run(engine, constants, inputs, live, tokenizer_files): intermediate values by name. `live` runs in steps
        of 80 ms if the family also has longer calls. The files are those of the bundle or checkpoint.
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
    """An endless run in steps of 80 ms. Work that precedes the first step is done on construction.

    `prepared` are values that another workload with the same settings can reuse.
    """

    @property
    def prepared(self) -> Arrays | None: ...

    def step(self) -> None: ...


@dataclass(frozen=True)
class BenchWorkload(Generic[Constants]):
    """Workloads that the benchmark times.

    first_output: JSON key of the seconds until the first output.
    options: names of the `bench` options that apply to the family.
    voice(bundle, constants): the voice to time, float32 [rows, dim]; no rows if the family or the bundle
        has no voices.
    rows_needed(settings, steps): rows of the decoder's cache for `steps` steps; 0 for a sliding window.
    check_counts(components, counts): raises UsageError if the bundle cannot run one of the batch sizes.
    start(stream, constants, settings, prepared): a workload on an empty stream. `prepared` is that of an
        earlier workload, or None.
    batched(engine, constants, settings, prepared, time): a row of figures for each batch size in
        `settings.counts`, measured with `time`.
    lines(result): text: the time to the first output, then a line for each row of `batched`.
    """

    first_output: str
    options: tuple[str, ...]
    voice: Callable[[Bundle, Constants], np.ndarray]
    rows_needed: Callable[[BenchSettings, int], int]
    check_counts: Callable[[Mapping[str, ComponentEntry], tuple[int, ...]], None]
    start: Callable[[Stream, Constants, BenchSettings, Arrays | None], Workload]
    batched: Callable[[Engine, Constants, BenchSettings, Arrays | None, TimeSteps], list[Figures]]
    lines: Callable[[Figures], list[str]]


@dataclass(frozen=True)
class SpeechBench(Generic[Constants, Decoder, Noise]):
    """What the workloads of a family that speaks differ in.

    begin(stream, constants, settings): a decoder and its prompt.
    fixed_rows: rows of a prompt besides voice and text.
    condition: of the time to the first sound, as text.
    """

    loop: FrameLoop[Constants, Decoder, Noise]
    begin: Callable[[Stream, Constants, BenchSettings], tuple[Decoder, Any]]
    fixed_rows: int
    condition: str = ""

    def workload(self, voice: Callable[[Bundle, Constants], np.ndarray]) -> BenchWorkload[Constants]:
        """`voice`: see `BenchWorkload`."""
        return BenchWorkload(
            first_output=FIRST_SOUND,
            options=("streams", "prompt_tokens"),
            voice=voice,
            rows_needed=lambda settings, steps: (
                len(settings.voice) + settings.prompt_tokens + steps + self.fixed_rows
            ),
            check_counts=self._check_counts,
            start=partial(SpeechWorkload, self),
            batched=self._time_batches,
            lines=self._lines,
        )

    def _check_counts(self, components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
        """Raises UsageError if one call of the bundle cannot serve so many streams."""
        limit = max_slots(components.values(), self.loop.batched)
        if not all(1 <= count <= limit for count in counts):
            raise UsageError(
                f"streams {','.join(map(str, counts))}: one call of this bundle serves 1 to {limit} streams",
                field="streams",
            )

    def _time_batches(
        self,
        engine: Engine,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
        time: TimeSteps,
    ) -> list[Figures]:
        """Frames per second of all slots together, for each number of slots in `settings.counts`."""
        rows = list[Figures]()
        for count in settings.counts:
            seconds, calls = time(
                engine.batched(count),
                lambda stream: SpeechWorkload(self, stream, constants, settings, prepared).step,
            )
            rows.append(
                {
                    "streams": count,
                    "frames_per_s": count / seconds,
                    "pass_ms": seconds * 1e3,
                    "median_ms": calls,
                }
            )
        return rows

    def _lines(self, result: Figures) -> list[str]:
        return [
            f"first sound {result[FIRST_SOUND]:.2f} s after {result['prompt_tokens']} ids{self.condition}",
            *(
                f"{row['streams']} streams: {row['frames_per_s']:.1f} frames/s, "
                f"{row['pass_ms']:.0f} ms for a frame of each"
                for row in result["streams"]
            ),
        ]


class SpeechWorkload(Generic[Constants, Decoder, Noise]):
    """A frame of each slot of a stream in a step. Every code is fed back, and the end does not stop it.

    The codec runs slot by slot. `prepared` are the cache rows of the prefix of the prompts.
    """

    def __init__(
        self,
        bench: SpeechBench[Constants, Decoder, Noise],
        stream: Stream,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
    ):
        self._loop, self._stream, self.prepared = bench.loop, stream, prepared
        self._constants = constants
        self._decoders = list[Decoder]()
        for slot in range(stream.batch):
            part = stream.slot(slot) if stream.batch > 1 else stream
            decoder, prompt = bench.begin(part, constants, settings)
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
