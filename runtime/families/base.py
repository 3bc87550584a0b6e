"""`RuntimeFamily`: what the runtime, verification and the benchmark need of a model family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from pydantic import ValidationError

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle, ComponentEntry, ExportJob, FamilyConstants, first_fault
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.trace import ArraySpec

if TYPE_CHECKING:
    from voxport.runtime.speech_to_text import SpeechToText
    from voxport.runtime.text_to_speech import TextToSpeech

Constants = TypeVar("Constants", bound=FamilyConstants)
Figures = dict[str, Any]  # a JSON object of the benchmark, whose keys the family chooses
StartSteps = Callable[[Stream], Callable[[], None]]
"""`start(stream)` prepares a run on the stream and returns the function that computes its next step."""
TimeSteps = Callable[[Stream, StartSteps], tuple[float, dict[str, float]]]
"""`time(stream, start)` returns the median seconds of a step, and the median ms of a call of each
component.
"""


@dataclass(frozen=True)
class Call:
    """Names of the inputs, outputs and dimensions of a component that the runtime uses."""

    inputs: frozenset[str]
    outputs: frozenset[str]
    dims: frozenset[str] = frozenset()


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
class RuntimeFamily(Generic[Constants]):
    """A model family.

    name: key of the table of families.
    task: the abstract task that `open` returns.
    calls(job): the components that the runtime calls; they are checked when a bundle is opened.
    constants: the record of the family's constants, which `model` writes.
    voices(bundle): names of the bundle's voices, and the prompt rows of each; empty without voices.
    open(bundle, engine, constants): the task on a bundle whose calls were checked (see `runtime.opening`);
        raises UsageError if the bundle lacks tokenizer files that the task needs.
    server_options: export options of bundles for a server, if they differ from the defaults.
    """

    name: str
    task: type[TextToSpeech] | type[SpeechToText]
    calls: Callable[[ExportJob], Mapping[str, Call]]
    constants: type[Constants]
    voices: Callable[[Bundle], dict[str, int]]
    open: Callable[[Bundle, Engine, Constants], TextToSpeech | SpeechToText]
    trace: TraceWorkload[Constants]
    verification: VerificationWorkload[Constants]
    bench: BenchWorkload[Constants]
    server_options: Mapping[str, bool | int | str] = field(default_factory=dict)


def parse_constants(record: type[Constants], values: Json) -> Constants:
    """The constants of a manifest. Raises IntegrityError that names a wrong one."""
    try:
        return record.model_validate(values)
    except ValidationError as error:
        raise IntegrityError(
            f"manifest.json: constants: {first_fault(error)}; export the bundle again"
        ) from None


def tokenizer_paths(bundle: Bundle) -> list[Path]:
    """The tokenizer files of a bundle. Raises UsageError without any."""
    if not bundle.manifest.tokenizer:
        raise UsageError(
            f"{bundle.folder}: the bundle has no tokenizer; export from a checkpoint with its tokenizer files"
        )
    return [bundle.folder / name for name in bundle.manifest.tokenizer]


def max_slots(components: Iterable[ComponentEntry], batched: Iterable[str]) -> int:
    """Slots that one batch may have, if one call runs each of the components `batched` for all slots."""
    found = {entry.name: entry.max_batch for entry in components}
    return min(found.get(name, 1) for name in batched)
