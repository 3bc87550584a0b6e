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

    `signatures` has the signature of each component. `batch` is the number of slots: the size of axis 0.
    """

    batch = 1

    def __init__(self, signatures: Mapping[str, Signature], lock: "RLock | None" = None):
        """`lock` is the lock of the engine, for streams that share it."""
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

        Raises UsageError if the engine cannot do this.
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

    @abstractmethod
    def reset(self) -> None:
        """Empties every state."""

    def save(self, component: str | None = None, positions: int | None = None) -> Arrays:
        """Copies of the states of a component by name (None: of all components). Of each cache, the rows of
        the first `positions` positions (None: all rows). An engine may return another type of floats.
        """
        signatures = self.signatures.values() if component is None else [self.signatures[component]]
        with self.lock:
            return self._save(list(unique_states(signatures).values()), positions)

    def load(self, states: Arrays) -> None:
        """Writes what `save` returned, of this stream or of another one. Other states stay as they are.

        Rows of a cache behind the loaded ones mean nothing. Raises UsageError on states of another bundle.
        """
        check_states(self.signatures.values(), states, self.batch)
        with self.lock:
            self._load(states)

    @abstractmethod
    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays: ...

    @abstractmethod
    def _load(self, states: Arrays) -> None: ...


def unique_states(signatures: Iterable[Signature]) -> dict[str, StateSpec]:
    """The states of several components by name; components of one graph share them."""
    return {state.name: state for signature in signatures for state in signature.states}


def batched_shape(state: StateSpec, batch: int) -> tuple[int, ...]:
    return (batch, *state.shape[1:])


def empty_states(signatures: Iterable[Signature]) -> Arrays:
    """Zeros for every state. A page of a cache uses no memory before a row is written to it."""
    states = unique_states(signatures)
    return {name: lazy_zeros(state.shape, state.dtype) for name, state in states.items()}


def copy_states(arrays: Arrays, states: Iterable[StateSpec], positions: int | None = None) -> Arrays:
    """Copies of some of the states in `arrays`, as `Stream.save` returns them."""
    return {
        state.name: copy_pages(arrays[state.name])
        if positions is None
        else arrays[state.name][first_rows(state, positions)].copy()
        for state in states
    }


def write_states(arrays: Arrays, states: Arrays) -> None:
    """Writes `states` to `arrays`: whole ones are replaced by copies, rows are written in place."""
    for name, values in states.items():
        if values.shape == arrays[name].shape:
            arrays[name] = copy_pages(values.astype(arrays[name].dtype, copy=False))
        else:
            arrays[name][tuple(map(slice, values.shape))] = values


def copy_pages(array: np.ndarray) -> np.ndarray:
    """A copy. Pages of zeros, such as the unused rows of a cache, use no memory."""
    copied = lazy_zeros(array.shape, array.dtype.name)
    target, source = copied.reshape(-1), np.ascontiguousarray(array).reshape(-1)
    paged = source.size - source.size % PAGE_VALUES  # the last page may be partial
    pages = source[:paged].reshape(-1, PAGE_VALUES)
    np.copyto(target[:paged].reshape(pages.shape), pages, where=pages.any(axis=1, keepdims=True))
    target[paged:] = source[paged:]
    return copied


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
    """Raises UsageError that names the first of the saved `states` that these components do not have."""
    specs = unique_states(signatures)
    for name, array in states.items():
        shape = batched_shape(specs[name], batch) if name in specs else ()
        axis = row_axis(specs[name]) if name in specs else None
        fits = len(shape) == array.ndim and all(
            found <= size if index == axis else found == size
            for index, (found, size) in enumerate(zip(array.shape, shape, strict=True))
        )
        if not shape or not fits:
            expected = list(shape) or "no such state"
            raise UsageError(f"state {name} has shape {list(array.shape)}, this bundle has {expected}")


def row_axis(state: StateSpec) -> int | None:
    """The axis of the rows of a cache; None for any other state."""
    return state.cache.row_axis if state.cache else None


def first_rows(state: StateSpec, positions: int | None) -> tuple[slice, ...]:
    """Index of what the first `positions` positions use: rows of a cache, and all of any other state."""
    if state.cache is None or positions is None:
        return ()
    count = min(positions * state.cache.rows_per_position, state.rows)
    return (slice(None),) * state.cache.row_axis + (slice(count),)
