"""`Engine` opens a bundle's components; `Stream` holds the states of one caller. Also helpers for states."""

import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import Signature, StateSpec
from voxport.runtime.engines.call_checks import check_inputs, check_outputs
from voxport.runtime.engines.rows import divide, join
from voxport.runtime.machine import measure_bandwidth

Arrays = dict[str, np.ndarray]
CUDA_PRECISION = "float16"  # compute precision of the ONNX bundles that CUDA can run
PAGE_VALUES = 1024  # float32 values of a memory page
# Of one component. With fewer, a second thread gains nothing for one stream, and makes a frame up to three
# times longer while other programs use the cores (docs/performance.md).
LEAST_BYTES_FOR_THREADS = 8 << 20


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs.

    `threads` None is a number that fits the bundle, see `thread_count`. `device` applies to ONNX bundles, see
    `runtime.engines.onnx.open_device`. The other two apply to Core ML bundles, see `open_coreml`.
    """

    threads: int | None = None
    compute_precision: str | None = None
    compute_units: str | None = None
    device: str | None = None

    def thread_count(self, bundle: Bundle) -> int:
        """Threads of an engine: by default, all cores, or one for a bundle with small components."""
        largest = max((entry.weight_bytes for entry in bundle.components), default=0)
        return self.threads or (1 if largest < LEAST_BYTES_FOR_THREADS else os.cpu_count() or 1)


class Engine(ABC):
    """Compiled code and weights, shared by all streams. `identity` names the software that computes.

    Calls from several threads run one after another, because each call uses all of the engine's threads.
    """

    identity: str

    def __init__(self) -> None:
        self.lock = RLock()

    @abstractmethod
    def stream(self) -> "Stream":
        """A new stream with empty states."""

    def batched(self, size: int) -> "Stream":
        """A stream with `size` slots. Its batchable components serve all slots in one call.

        Raises UsageError if a call serves only one slot.
        """
        if size == 1:
            return self.stream()
        raise UsageError(f"{self.identity}: one call serves one stream, not {size}")

    def bandwidth(self, threads: int | None) -> float:
        """Bytes per second that the memory of the weights can be read at, measured."""
        return measure_bandwidth(threads)


class Stream(ABC):
    """The states of one caller and the calls that change them. Two streams of one engine never share states.

    `signatures` are those of the components by name. `batch` is the number of slots: the size of axis 0.
    """

    batch = 1

    def __init__(self, signatures: Mapping[str, Signature], lock: "RLock | None" = None):
        """`lock` is that of the engine, for streams that share it."""
        self.signatures = dict(signatures)
        self.lock = lock or RLock()

    def run(self, component: str, inputs: Arrays) -> Arrays:
        """Calls a component, updates its states and returns its outputs.

        Raises UsageError on inputs that do not fit, IntegrityError on outputs that do not.
        """
        if component not in self.signatures:
            raise UsageError(f"no component {component!r}; there are {', '.join(self.signatures)}")
        sizes = check_inputs(component, self.signatures[component], inputs, self.batch)
        with self.lock:
            outputs = self._run(component, inputs)
        check_outputs(component, self.signatures[component], outputs, sizes)
        return outputs

    def run_rows(self, component: str, inputs: Arrays) -> Arrays:
        """As `run`, for inputs with any number of rows (axis 1).

        A component that takes fewer rows is called several times. If one of the calls raises, the states have
        the rows of the calls before.
        """
        signature = self.signatures[component]
        return join(signature, [self.run(component, piece) for piece in divide(signature, inputs)])

    @abstractmethod
    def _run(self, component: str, inputs: Arrays) -> Arrays: ...

    def run_active(self, component: str, inputs: Arrays, active: Sequence[int]) -> Arrays:
        """As `run`, for the slots `active` only. The others keep their states up to their position; what
        follows may be overwritten. Their outputs mean nothing.

        Raises UsageError where the engine cannot do this.
        """
        if len(active) < self.batch:
            raise UsageError(f"{component}: this stream cannot leave out slots of a batch")
        return self.run(component, inputs)

    def capacity(self, component: str) -> int:
        """Positions that the component's cache holds, or that its stream may reach.

        Raises UsageError without a cache.
        """
        capacity = self.signatures[component].capacity
        if capacity is None:
            raise UsageError(f"{component}: has no cache, so it has no capacity")
        return capacity

    def slot(self, index: int) -> "Stream":
        """One slot of the stream, for components that are not batched. It uses the same memory for states."""
        return self

    def first(self, count: int) -> "Stream":
        """The first `count` slots, for calls that leave the others as they are. It uses the same memory for
        states.
        """
        return self

    def move(self, source: int, target: int, positions: int, component: str | None = None) -> None:
        """Copies the states of slot `source` to slot `target`, or those of a component: of each cache the
        rows of the first `positions` positions, and every other state.
        """
        raise UsageError(f"slot {source}: this stream cannot copy it to slot {target}")

    @abstractmethod
    def reset(self) -> None:
        """Empties every state."""

    @abstractmethod
    def snapshot(self) -> Arrays:
        """Copies of all states by name."""

    @abstractmethod
    def restore(self, states: Arrays) -> None:
        """Replaces all states by those of a snapshot."""

    def save_rows(self, count: int) -> Arrays:
        """Copies of the first `count` rows of every cache by name; of all rows where a cache has fewer."""
        with self.lock:
            states = self._current_states()
            caches = unique_caches(self.signatures.values())
            return {
                name: states[name][(slice(None),) * _row_axis(cache) + (slice(count),)].copy()
                for name, cache in caches.items()
            }

    def row_shapes(self, count: int) -> dict[str, tuple[int, ...]]:
        """Shapes of `save_rows(count)` by name."""
        caches = unique_caches(self.signatures.values())
        return {name: _rows_shape(state, count) for name, state in caches.items()}

    def _current_states(self) -> Arrays:
        """All states by name, to be read before the next call. An engine may return them without a copy.

        A cache may have fewer rows than its signature, where the others are empty.
        """
        return self.snapshot()

    def load_rows(self, rows: Arrays) -> None:
        """Writes the rows of `save_rows` to an empty stream. Raises UsageError on rows of another bundle."""
        states = self.snapshot()
        put_rows(states, unique_caches(self.signatures.values()), rows, self.batch)
        self.restore(states)

    def save_states(self, component: str, positions: int) -> Arrays:
        """Copies of the states of a component by name: of each cache the rows of the first `positions`
        positions, and every other state.
        """
        with self.lock:
            states = self._current_states()
            return {
                state.name: states[state.name][first_rows(state, positions)].copy()
                for state in self.signatures[component].states
            }

    def load_states(self, states: Arrays) -> None:
        """Writes what `save_states` returned. The stream has run nothing, or its rows mean nothing now."""
        whole = self.snapshot()
        for name, array in states.items():
            whole[name][tuple(map(slice, array.shape))] = array
        self.restore(whole)


def unique_states(signatures: Iterable[Signature]) -> dict[str, StateSpec]:
    """The states of several components by name; components of one graph share them."""
    return {state.name: state for signature in signatures for state in signature.states}


def unique_caches(signatures: Iterable[Signature]) -> dict[str, StateSpec]:
    return {name: state for name, state in unique_states(signatures).items() if state.cache}


def batched_shape(state: StateSpec, batch: int) -> tuple[int, ...]:
    return (batch, *state.shape[1:])


def empty_states(signatures: Iterable[Signature]) -> Arrays:
    """Zeros for every state. A page of a cache uses no memory before a row is written to it."""
    states = unique_states(signatures)
    return {name: lazy_zeros(state.shape, state.dtype) for name, state in states.items()}


def copy_states(states: Arrays) -> Arrays:
    """Copies of all states. Pages of zeros, such as the unused rows of a cache, use no memory."""
    copies = {}
    for name, array in states.items():
        copies[name] = lazy_zeros(array.shape, array.dtype.name)
        target, source = copies[name].reshape(-1), np.ascontiguousarray(array).reshape(-1)
        paged = source.size - source.size % PAGE_VALUES  # the last page may be partial
        pages = source[:paged].reshape(-1, PAGE_VALUES)
        np.copyto(target[:paged].reshape(pages.shape), pages, where=pages.any(axis=1, keepdims=True))
        target[paged:] = source[paged:]
    return copies


def lazy_zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros mapped from the system.

    NumPy may clear heap memory or use huge pages: 0.4 GB for the published caches.
    """
    count = math.prod(shape)
    size = max(1, count * np.dtype(dtype).itemsize)
    flags = {}
    if hasattr(mmap, "MAP_PRIVATE"):  # shared pages would use memory when they are read
        flags["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, size, **flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype, count).reshape(shape)


def check_states(signatures: Iterable[Signature], states: Arrays, batch: int = 1) -> None:
    """Checks that a snapshot has the states of these components.

    Raises UsageError that names the first difference.
    """
    specs = unique_states(signatures)
    expected = {name: (batched_shape(state, batch), state.dtype) for name, state in specs.items()}
    found = {name: (array.shape, array.dtype.name) for name, array in states.items()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            raise UsageError(
                f"snapshot: state {name} is {found.get(name)}, this bundle has {expected.get(name)}"
            )


def put_rows(states: Arrays, caches: dict[str, StateSpec], rows: Arrays, batch: int = 1) -> None:
    """Writes `rows` to the beginning of the caches in `states`.

    Raises UsageError on rows of another bundle.
    """
    check_rows(caches, rows, batch)
    for name, found in rows.items():
        axis = _row_axis(caches[name])
        states[name][(slice(None),) * axis + (slice(found.shape[axis]),)] = found


def check_rows(caches: dict[str, StateSpec], rows: Arrays, batch: int = 1) -> None:
    """Raises UsageError on rows of another bundle."""
    for name in sorted(caches.keys() | rows.keys()):
        state, found = caches.get(name), rows.get(name, np.empty(0))
        shape, axis = list(batched_shape(state, batch)) if state else [], _row_axis(state)
        is_whole = found.ndim == len(shape) and _without(found.shape, axis) == _without(shape, axis)
        if not shape or not is_whole or found.shape[axis] > shape[axis]:
            raise UsageError(f"rows: cache {name} has shape {list(found.shape)}, this bundle has {shape}")


def first_rows(state: StateSpec, positions: int) -> tuple[slice, ...]:
    """Index of what the first `positions` positions use: rows of a cache, and all of any other state."""
    if state.cache is None:
        return ()
    count = min(positions * state.cache.rows_per_position, state.rows)
    return (slice(None),) * state.cache.row_axis + (slice(count),)


def _rows_shape(state: StateSpec, count: int) -> tuple[int, ...]:
    axis = _row_axis(state)
    return (*state.shape[:axis], min(count, state.rows), *state.shape[axis + 1 :])


def _row_axis(state: StateSpec | None) -> int:
    return state.cache.row_axis if state and state.cache else 0


def _without(shape: Iterable[int], axis: int) -> list[int]:
    return [size for index, size in enumerate(shape) if index != axis]
