"""`RuntimeFamily`: what the runtime, verification and the benchmark need of a model family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from bundle.bundle import Bundle
from bundle.manifest import ComponentEntry, ExportJob
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays
from runtime.trace import ArraySpec

if TYPE_CHECKING:
    from runtime.speech_to_text import SpeechToText
    from runtime.text_to_speech import TextToSpeech

Constants = TypeVar("Constants")  # the family's record of constants; opaque to callers
ConstantsIn = TypeVar("ConstantsIn", contravariant=True)
Figures = dict[str, Any]  # a JSON object of the benchmark, whose keys the family chooses
StartSteps = Callable[[Stream], Callable[[], None]]
"""`start(stream)` prepares a run on the stream and returns the function that computes its next step."""
TimeSteps = Callable[[Stream, StartSteps], tuple[float, dict[str, float]]]
"""`time(stream, start)` returns the median seconds of a step, and the median ms of a call of each
component.
"""


@dataclass(frozen=True)
class Call:
    """Names of the inputs and outputs of a component that the runtime uses."""

    inputs: frozenset[str]
    outputs: frozenset[str]


@dataclass(frozen=True)
class ForcedRun:
    """The result of a fixed run of n steps, for comparisons.

    `codes` int64 [n, K]: column 0 is `first` + the argmax of the row of `logits` float32 [n, R]. The other
    columns, if any, are rounded from values that have no logits. `hidden` float32 [n, D] measures the effect
    of quantisation.
    """

    codes: np.ndarray
    logits: np.ndarray
    hidden: np.ndarray
    first: int = 0


@dataclass(frozen=True)
class NearResult:
    """Whether the codes that have no logits are close enough to the reference, and the measured difference as
    text.
    """

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


class TraceWorkload(Protocol[ConstantsIn]):
    """Computes every intermediate value of one run from given inputs."""

    def inputs(self, constants: ConstantsIn) -> dict[str, ArraySpec]:
        """The arrays that `run` takes, by name."""

    def run(self, engine: Engine, constants: ConstantsIn, inputs: Arrays, live: bool) -> Arrays:
        """Intermediate values by name.

        `live` runs in steps of 80 ms where the family also has longer calls.
        """


class VerificationWorkload(Protocol[ConstantsIn]):
    """Fixed runs whose results verification compares between two streams."""

    def teacher_forced_run(
        self, stream: Stream, constants: ConstantsIn, steps: int, forced: np.ndarray | None = None
    ) -> ForcedRun:
        """Runs `steps` steps from a fixed input. `forced` int64 [steps, K] replaces the fed-back codes.

        With `forced`, each graph runs all its steps before the next graph starts where the model allows it.
        """

    def free_run(self, stream: Stream, constants: ConstantsIn, steps: int) -> np.ndarray:
        """The output of a free run of at most `steps` steps: samples or tokens."""

    def compare(self, found: np.ndarray, expected: np.ndarray, constants: ConstantsIn) -> dict[str, float]:
        """Distances between two results of `free_run`."""

    def codes_are_near(self, found: np.ndarray, expected: np.ndarray) -> NearResult | None:
        """Compares the codes int64 [n, K] of two runs that have no logits.

        None where the family has no such codes.
        """


class Workload(Protocol):
    """An endless run in steps of 80 ms. Work that precedes the first step is done on construction.

    `prepared` are values that another workload with the same settings can reuse.
    """

    @property
    def prepared(self) -> Arrays | None: ...

    def step(self) -> None: ...


class BenchWorkload(Protocol[ConstantsIn]):
    """What the benchmark times. `first_output` is the JSON key of the seconds until the first output.

    `options` are the names of the `bench` options that apply to the family.
    """

    @property
    def first_output(self) -> str: ...

    @property
    def options(self) -> tuple[str, ...]: ...

    def voice(self, bundle: Bundle, constants: ConstantsIn) -> np.ndarray:
        """The voice to time: float32 [rows, dim], without rows where the family or the bundle has no
        voices.
        """

    def rows_needed(self, settings: BenchSettings, steps: int) -> int:
        """Rows of the decoder's cache for `steps` steps; 0 where the cache is a sliding window."""

    def check_counts(self, components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
        """Raises UsageError where the bundle cannot run one of the batch sizes."""

    def start(
        self, stream: Stream, constants: ConstantsIn, settings: BenchSettings, prepared: Arrays | None
    ) -> Workload:
        """A workload on an empty stream. `prepared` is that of an earlier workload, or None."""

    def batched(
        self,
        engine: Engine,
        constants: ConstantsIn,
        settings: BenchSettings,
        prepared: Arrays | None,
        time: TimeSteps,
    ) -> list[Figures]:
        """A row of figures for each batch size in `settings.counts`, measured with `time`."""

    def lines(self, result: Figures) -> list[str]:
        """Text: the time to the first output, then a line for each row of `batched`."""


class RuntimeFamily(Protocol[Constants]):
    """A model family.

    `calls` are the components that the runtime calls; they are checked when a bundle is opened.
    """

    @property
    def name(self) -> str: ...

    @property
    def task(self) -> type[TextToSpeech] | type[SpeechToText]:
        """The abstract task that `open` returns."""

    @property
    def calls(self) -> Mapping[str, Call]: ...

    @property
    def trace(self) -> TraceWorkload[Constants]: ...

    @property
    def verification(self) -> VerificationWorkload[Constants]: ...

    @property
    def bench(self) -> BenchWorkload[Constants]: ...

    def parse_constants(self, job: ExportJob) -> Constants:
        """The constants that the runtime needs. Raises IntegrityError that names a wrong constant."""

    def open_tokenizer(self, paths: Sequence[Path]) -> object:
        """The tokenizer, from its files. Raises IntegrityError that names the file."""

    def voices(self, bundle: Bundle) -> dict[str, int]:
        """Names of the bundle's voices, and the prompt rows of each; empty for a family without voices."""

    def open(self, bundle: Bundle, engine: Engine, constants: Constants) -> TextToSpeech | SpeechToText:
        """The task on a bundle whose calls were checked: see `runtime.opening`.

        Raises UsageError where the bundle lacks tokenizer files that the task needs.
        """
