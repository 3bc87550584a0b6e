"""The interface of engines, and the checks that every call passes whatever the engine."""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock

import numpy as np

from bundle.bundle import ComponentEntry
from bundle.errors import UsageError

Arrays = dict[str, np.ndarray]
PAGE = 1024  # values
ROLLING_POSITIONS = 4096 * 4095  # rows that a cache without end may count; 93 hours at 50 a second


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs: `threads` None means all cores; the other two are for Core ML bundles, see `open_coreml`."""

    threads: int | None = None
    compute_precision: str | None = None
    compute_units: str | None = None


class Engine(ABC):
    """Holds what streams share: compiled code and weights. `identity` names what decides its numbers besides the bundle.

    Calls of several threads follow one another: each takes all of the engine's threads anyway.
    """

    identity: str

    def __init__(self) -> None:
        self.lock = RLock()

    @abstractmethod
    def stream(self) -> Stream:
        """A new caller, with states of its own, empty."""

    def together(self, count: int) -> Stream:
        """A stream of `count` callers, whose batched components are called for all of them at once: see `Stream.alone`.

        Raises UsageError where the engine's calls serve one.
        """
        if count == 1:
            return self.stream()
        raise UsageError(f"{self.identity}: one call serves one stream, not {count}")


class Stream(ABC):
    """One utterance's states and the calls that change them. Two streams of one engine never see each other's states.

    `row_axis` is the axis of a cache's rows; `count` how many callers it has, of whom axis 0 of inputs, outputs and states tells.
    """

    row_axis: int
    count = 1

    def __init__(
        self, components: tuple[ComponentEntry, ...], cache_length: int, engine: Engine | None = None
    ):
        """`engine` is what other streams share, if any."""
        self.components = {entry.name: entry for entry in components}
        self.cache_length = cache_length
        self.lock = engine.lock if engine else RLock()

    def run(self, component: str, inputs: Arrays) -> Arrays:
        """Calls a component, updates its states, and returns its outputs. Raises UsageError on inputs that do not fit."""
        if component not in self.components:
            raise UsageError(f"no component {component!r}; there are {', '.join(self.components)}")
        entry = self.components[component]
        check_inputs(entry, inputs, self.cache_length, self.count)
        with self.lock:
            return self._run(entry, inputs)

    @abstractmethod
    def _run(self, entry: ComponentEntry, inputs: Arrays) -> Arrays: ...

    def alone(self, index: int) -> Stream:
        """One of a stream's callers, for the components that are not batched. Its states are the same memory."""
        return self

    @abstractmethod
    def reset(self) -> None:
        """Empties every state."""

    @abstractmethod
    def snapshot(self) -> Arrays:
        """Copies of all states, by name."""

    @abstractmethod
    def restore(self, states: Arrays) -> None:
        """Puts a snapshot's values back."""

    def save_rows(self, count: int) -> Arrays:
        """Copies of the first `count` rows of every cache, by state; of all there are where that is fewer."""
        states = self.snapshot()
        return {
            name: np.take(states[name], range(min(count, shape[self.row_axis])), self.row_axis)
            for name, shape in self._caches().items()
        }

    def load_rows(self, rows: Arrays) -> None:
        """Puts what `save_rows` gave into an empty stream. Raises UsageError on rows of another bundle."""
        states = self.snapshot()
        self._put_rows(states, rows)
        self.restore(states)

    def _caches(self) -> dict[str, tuple[int, ...]]:
        return {
            state.name: state.shape
            for entry in self.components.values()
            for state in entry.states
            if state.is_cache
        }

    def _put_rows(self, states: Arrays, rows: Arrays) -> None:
        caches = {name: (self.count, *shape[1:]) for name, shape in self._caches().items()}
        for name in sorted(caches.keys() | rows.keys()):
            shape = list(caches.get(name, ()))
            found = rows.get(name, np.empty(0))
            if (
                not shape
                or found.ndim != len(shape)
                or [*found.shape[: self.row_axis], *found.shape[self.row_axis + 1 :]]
                != [
                    *shape[: self.row_axis],
                    *shape[self.row_axis + 1 :],
                ]
            ):
                raise UsageError(f"rows: cache {name} has shape {list(found.shape)}, this bundle has {shape}")
            states[name][(slice(None),) * self.row_axis + (slice(found.shape[self.row_axis]),)] = found


def check_inputs(entry: ComponentEntry, inputs: Arrays, cache_length: int, count: int = 1) -> None:
    """Names, dtypes, shapes and bounds; engines check less than this, and one of them aborts on a negative position."""
    if count > entry.most_streams:
        raise UsageError(f"{entry.name}: one call serves at most {entry.most_streams} streams, not {count}")
    if inputs.keys() != {spec.name for spec in entry.inputs}:
        raise UsageError(
            f"{entry.name}: inputs {', '.join(sorted(inputs))}; expected {', '.join(spec.name for spec in entry.inputs)}"
        )
    sizes: dict[str, int] = {}
    for spec in entry.inputs:
        array = inputs[spec.name]
        if array.dtype != spec.dtype:
            raise UsageError(f"{entry.name}: input {spec.name} is {array.dtype}, expected {spec.dtype}")
        if array.ndim != len(spec.shape):
            raise UsageError(
                f"{entry.name}: input {spec.name} has shape {list(array.shape)}, expected {list(spec.shape)}"
            )
        for size, expected in zip(
            array.shape, (count, *spec.shape[1:]) if count > 1 else spec.shape, strict=True
        ):
            if isinstance(expected, str):
                low, high = entry.dims[expected]
                fits = low <= size <= high and sizes.setdefault(expected, size) == size
            else:
                fits = size == expected
            if not fits:
                bounds = ", ".join(f"{name} from {low} to {high}" for name, (low, high) in entry.dims.items())
                raise UsageError(
                    f"{entry.name}: input {spec.name} has shape {list(array.shape)}, expected {list(spec.shape)} {bounds}".rstrip()
                )
    for position in inputs["position"].tolist() if "position" in inputs else ():
        _check_position(entry, position, inputs[entry.inputs[0].name].shape[1], cache_length)


def _check_position(entry: ComponentEntry, position: int, rows: int, cache_length: int) -> None:
    """A cache without end takes one row a call beyond its window, or as many as it has room for besides."""
    cache = next((state for state in entry.states if state.is_cache), None)
    if cache is None or position < 0:
        fits, end = position >= 0, cache_length
    elif cache.window is None:
        fits, end = position + rows <= cache_length, cache_length
    else:
        in_one = rows * cache.stride <= cache.at_once or (position + rows) * cache.stride <= cache.window
        fits = in_one and (position + rows) * cache.stride <= ROLLING_POSITIONS
        end = (ROLLING_POSITIONS if in_one else cache.window) // cache.stride
    if not fits:
        raise UsageError(
            f"{entry.name}: position {position} with {rows} rows lies outside the cache of {end}"
        )


def empty_states(components: dict[str, ComponentEntry], count: int = 1) -> Arrays:
    """Zeros for every state that the components name, of `count` streams. Pages of a cache cost nothing before a row is written to them."""
    return {
        state.name: _untouched((count, *state.shape[1:]), state.dtype)
        for entry in components.values()
        for state in entry.states
    }


def copied(states: Arrays) -> Arrays:
    """Copies. Pages of zeros, as the rest of a cache has, take no memory."""
    copies = {}
    for name, array in states.items():
        copy = copies[name] = _untouched(array.shape, array.dtype.name)
        target, source = copy.reshape(-1), np.ascontiguousarray(array).reshape(-1)
        pages = source.size // PAGE
        used = source[: pages * PAGE].reshape(pages, PAGE)
        np.copyto(target[: pages * PAGE].reshape(pages, PAGE), used, where=used.any(axis=1, keepdims=True))
        target[pages * PAGE :] = source[pages * PAGE :]
    return copies


def _untouched(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros straight from the system: NumPy's may be a heap that is cleared at once, or huge pages, 0.4 GB for the published caches."""
    count = math.prod(shape)
    size = max(1, count * np.dtype(dtype).itemsize)
    private = (
        {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    )  # shared ones take memory when they are read
    pages = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype, count).reshape(shape)


def check_states(components: dict[str, ComponentEntry], states: Arrays, count: int = 1) -> None:
    """A snapshot fits the components, of `count` streams, that it is restored into. Raises UsageError."""
    expected = {
        state.name: ((count, *state.shape[1:]), state.dtype)
        for entry in components.values()
        for state in entry.states
    }
    found = {name: (array.shape, array.dtype) for name, array in states.items()}
    if found != expected:
        odd = next(
            name for name in sorted(expected.keys() | found.keys()) if found.get(name) != expected.get(name)
        )
        raise UsageError(f"snapshot: state {odd} is {found.get(odd)}, this bundle has {expected.get(odd)}")
