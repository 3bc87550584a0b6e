"""States of a stream as arrays: copies of them, and memory whose addresses an engine binds."""

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from voxport.bundle.spec import Signature, StateSpec
from voxport.runtime.engines.base import Arrays, batched_shape, row_axis, unique_states

PAGE_VALUES = 1024  # float32 values of a memory page


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


def first_rows(state: StateSpec, positions: int | None) -> tuple[slice, ...]:
    """Index of what the first `positions` positions use: rows of a cache, and all of any other state."""
    if state.cache is None or positions is None:
        return ()
    count = min(positions * state.cache.rows_per_position, state.rows)
    return (slice(None),) * state.cache.row_axis + (slice(count),)


class States(ABC):
    """States by name in the memory of `device`, of type `dtype`. `write` takes any float type.

    A call writes its new rows into a cache. It writes every other state to the address of its result, and
    `keep_results` copies these.
    """

    device: str

    def __init__(self, specs: Mapping[str, StateSpec], dtype: str, batch: int):
        self.specs, self.dtype, self.batch = specs, np.dtype(dtype), batch

    def shape(self, name: str) -> tuple[int, ...]:
        return batched_shape(self.specs[name], self.batch)

    def row_axis(self, name: str) -> int:
        """The axis of the rows of a cache; of any other state, the axis of the slots."""
        return row_axis(self.specs[name]) or 0

    @abstractmethod
    def address(self, name: str) -> int: ...

    @abstractmethod
    def result_address(self, name: str) -> int: ...

    @abstractmethod
    def keep_results(self, names: list[str]) -> None:
        """Replaces states by the results of a call."""

    @abstractmethod
    def clear(self) -> None:
        """Zeros in every state. Addresses may change, as in `write`."""

    @abstractmethod
    def read(self, name: str, positions: int | None = None) -> np.ndarray:
        """A copy of what the first `positions` positions use of a state: rows of a cache, else all of it.
        None is all positions.
        """

    @abstractmethod
    def write(self, name: str, values: np.ndarray) -> None:
        """Writes what `read` returned."""

    @abstractmethod
    def move_rows(self, name: str, source: int, target: int, count: int) -> None:
        """Copies rows of a cache to other rows of it that do not overlap them. `wait` waits for it."""

    def wait(self) -> None:  # noqa: B027  optional
        """Returns when rows that were moved are in place."""

    @abstractmethod
    def part(self, first: int, count: int) -> "States":
        """`count` slots from `first` on, in the same memory."""

    def move_into_history(self, name: str, position: int, count: int) -> None:
        """Moves new row p of a sliding-window cache from the staging area to row p mod history.

        `count` rows were written, from `position` on. See `bundle.spec.Layout`.
        """
        cache = self.specs[name].cache
        assert cache is not None
        history = (cache.window or 1) - 1
        staged = min(position, history) if cache.max_call_rows == 1 else history
        skipped = max(history - staged, count - history)  # already in place, or overwritten by later rows
        while skipped < count:  # twice where the rows wrap around
            row = (position + skipped) % history
            moved = min(count - skipped, history - row)
            self.move_rows(name, staged + skipped, row, moved)
            skipped += moved


class HostStates(States):
    """NumPy arrays. A page of a cache uses no memory before a row is written to it."""

    device = "cpu"

    def __init__(
        self, specs: Mapping[str, StateSpec], dtype: str, batch: int = 1, shared: Arrays | None = None
    ):
        """`shared` is the memory of another stream, for one of its slots."""
        super().__init__(specs, dtype, batch)
        self._is_shared = batch > 1 or shared is not None  # then arrays must be changed in place
        self._arrays = shared or self._zeros()
        self._results: Arrays = {}

    def _zeros(self) -> Arrays:
        return {name: lazy_zeros(self.shape(name), self.dtype.name) for name in self.specs}

    def address(self, name: str) -> int:
        return self._arrays[name].ctypes.data

    def result_address(self, name: str) -> int:
        if name not in self._results:
            self._results[name] = np.empty(self.shape(name), self.dtype)
        return self._results[name].ctypes.data

    def keep_results(self, names: list[str]) -> None:
        for name in names:
            self._arrays[name][:] = self._results[name]

    def clear(self) -> None:
        if self._is_shared:
            for array in self._arrays.values():
                array[:] = 0
        else:
            self._arrays = self._zeros()

    def read(self, name: str, positions: int | None = None) -> np.ndarray:
        if positions is None:
            return copy_pages(self._arrays[name])
        return self._arrays[name][first_rows(self.specs[name], positions)].copy()

    def write(self, name: str, values: np.ndarray) -> None:
        if values.shape == self.shape(name) and not self._is_shared:
            self._arrays[name] = copy_pages(values.astype(self.dtype, copy=False))
        else:
            self._arrays[name][tuple(map(slice, values.shape))] = values

    def move_rows(self, name: str, source: int, target: int, count: int) -> None:
        by_row = self._arrays[name].swapaxes(0, self.row_axis(name))
        by_row[target : target + count] = by_row[source : source + count]

    def part(self, first: int, count: int) -> "HostStates":
        arrays = {name: array[first : first + count] for name, array in self._arrays.items()}
        return HostStates(self.specs, self.dtype.name, count, arrays)
