"""What the runtime asks of a model family: one module each, named in `runtime.families`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bundle.manifest import ComponentEntry
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays

TimeSteps = Callable[[Stream, Callable[[Stream], Callable[[], None]]], tuple[float, dict[str, float]]]
"""`time(stream, start)`: `start(timed stream)` gives a step; its median in seconds, and that of a call of each component in ms."""


@dataclass(frozen=True)
class Wanted:
    """An array that a trace takes. Of a shape None is any size, a word one that all arrays with it have in common. `ends` are for
    integers: values lie in 0 ... end - 1, one end for all or one for each place of the last axis."""

    shape: tuple[int | str | None, ...]
    ends: tuple[int, ...] = ()
    is_optional: bool = False


@dataclass(frozen=True)
class Rehearsal:
    """A fixed run of n steps, for comparisons.

    `codes` int64 [n, K]: the first of each row is `first` + the argmax of a row of `logits` float32 [n, R]; the others, if any, are
    rounded from values of their own. `hidden` float32 [n, D] is what quantisation is told by.
    """

    codes: np.ndarray
    logits: np.ndarray
    hidden: np.ndarray
    first: int = 0


@dataclass(frozen=True)
class BenchSettings:
    """What is timed: `voice` float32 [rows, dim] (of a model that has voices) and ids of a prompt; `at_once` are numbers of callers, or of
    steps, that are timed together besides."""

    voice: np.ndarray
    prompt_tokens: int = 20
    at_once: tuple[int, ...] = ()


class Exercise(Protocol):
    """An endless run, 80 ms a step, all that comes before the first one done. `known` is what another of the same settings may be given,
    so that it need not compute it."""

    known: Any

    def step(self) -> None: ...


class RuntimeFamily(Protocol):
    """The functions of a family's module. `Constants` are opaque to the caller."""

    FAMILY: str
    CALLS: dict[str, tuple[set[str], set[str]]]  # component: its inputs, its outputs
    FIRST: str  # what a person waits for at the beginning
    BENCH_OPTIONS: tuple[str, ...]  # of `bench`, those that say something of the family

    def parse_constants(self, constants: dict[str, Any], switches: dict[str, Any]) -> Any:
        """Raises IntegrityError that names the constant."""

    def open_tokenizer(self, path: Path) -> Any:
        """What of a tekken.json the family needs. Raises IntegrityError."""

    def trace_inputs(self, constants: Any) -> dict[str, Wanted]: ...

    def trace(self, engine: Engine, constants: Any, inputs: Arrays, live: bool) -> Arrays: ...

    def rehearse(
        self, stream: Stream, constants: Any, steps: int, forced: np.ndarray | None = None
    ) -> Rehearsal:
        """A fixed run of so many steps; `forced` codes [steps, K] are fed back instead of the stream's own. With those, graphs run
        one after the other where they can, not in turns."""

    def perform(self, stream: Stream, constants: Any, steps: int) -> np.ndarray:
        """What a free run of at most so many steps gives a person: samples, or tokens."""

    def compare(self, found: np.ndarray, expected: np.ndarray, constants: Any) -> dict[str, float]:
        """How far two results of `perform` lie apart."""

    def rows_needed(self, constants: Any, settings: BenchSettings, steps: int) -> int:
        """Of the caches, for so many steps of an exercise; 0 where they have no end."""

    def exercise(self, stream: Stream, constants: Any, settings: BenchSettings, known: Any) -> Exercise: ...

    def check_at_once(self, entries: dict[str, ComponentEntry], counts: tuple[int, ...]) -> None:
        """Raises UsageError where not so many can be timed together."""

    def together(
        self, engine: Engine, constants: Any, settings: BenchSettings, known: Any, time: TimeSteps
    ) -> list[dict[str, Any]]:
        """For each number in `at_once` a row of figures: what makes them up, `time` measures."""

    def bench_lines(self, result: dict[str, Any]) -> list[str]:
        """For a person: how long the first output took, and a line for each row of `together`."""
