"""The states of a stream, in the memory of the host or of a device, for an engine that binds addresses."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import prod
from typing import Protocol

import numpy as np

from voxport.bundle.spec import StateSpec
from voxport.runtime.engines.base import (
    Arrays,
    batched_shape,
    copy_pages,
    first_rows,
    lazy_zeros,
    row_axis,
)

RowAddress = tuple[int, int]  # an address, and the bytes from row to row there


class Device(Protocol):
    """What `DeviceStates` needs of a device; see `runtime.engines.cuda.Cuda`."""

    name: str

    def allocate(self, size: int) -> int: ...
    def free(self, address: int) -> None: ...
    def clear(self, address: int, size: int) -> None: ...
    def copy(self, target: RowAddress, source: RowAddress, width: int, height: int = 1) -> None: ...
    def wait(self) -> None: ...
    def bandwidth(self) -> float: ...


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
        """Copies rows of a cache to other rows of it that do not overlap them."""

    @abstractmethod
    def slot(self, index: int) -> "States":
        """One slot, in the same memory."""

    @abstractmethod
    def first(self, count: int) -> "States":
        """The first `count` slots, in the same memory."""

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
        by_row = self._arrays[name].swapaxes(0, _axis(self.specs[name]))
        by_row[target : target + count] = by_row[source : source + count]

    def slot(self, index: int) -> "HostStates":
        return self._part(slice(index, index + 1), 1)

    def first(self, count: int) -> "HostStates":
        return self._part(slice(count), count)

    def _part(self, slots: slice, count: int) -> "HostStates":
        arrays = {name: array[slots] for name, array in self._arrays.items()}
        return HostStates(self.specs, self.dtype.name, count, arrays)


class DeviceStates(States):
    """Memory of a device. Copies between host and device only where a caller reads or writes states."""

    def __init__(
        self,
        device: Device,
        specs: Mapping[str, StateSpec],
        dtype: str,
        batch: int = 1,
        shared: "tuple[DeviceStates, int] | None" = None,
    ):
        """`shared` is the memory of another stream and the first slot of it."""
        super().__init__(specs, dtype, batch)
        self._device, self.device, self._shared = device, device.name, shared
        if shared is None:
            self._addresses = {name: self._allocate(name) for name in specs}
        else:
            whole, index = shared
            self._addresses = {name: whole.slot_address(name, index) for name in specs}
        self._results: dict[str, int] = {}

    def _size(self, name: str) -> int:
        return prod(self.shape(name)) * self.dtype.itemsize

    def _allocate(self, name: str) -> int:
        address = self._device.allocate(self._size(name))
        weakref.finalize(self, self._device.free, address)
        return address

    def address(self, name: str) -> int:
        return self._addresses[name]

    def slot_address(self, name: str, index: int) -> int:
        return self._addresses[name] + index * (self._size(name) // self.batch)

    def result_address(self, name: str) -> int:
        if name not in self._results:
            self._results[name] = self._allocate(name)
        return self._results[name]

    def keep_results(self, names: list[str]) -> None:
        for name in names:
            self._copy(name, self._addresses[name], self._results[name])
        if names:
            self._device.wait()

    def _copy(self, name: str, target: int, source: int) -> None:
        size = self._size(name)
        self._device.copy((target, size), (source, size), size)

    def clear(self) -> None:
        for name, address in self._addresses.items():
            self._device.clear(address, self._size(name))

    def read(self, name: str, positions: int | None = None) -> np.ndarray:
        shape = list(self.shape(name))
        if rows := first_rows(self.specs[name], positions):
            shape[_axis(self.specs[name])] = rows[-1].stop
        found, count = np.empty(shape, self.dtype), shape[_axis(self.specs[name])]
        self._copy_rows(name, (found.ctypes.data, count), self._row_address(name), count)
        return found

    def write(self, name: str, values: np.ndarray) -> None:
        array = np.ascontiguousarray(values, self.dtype)
        count = array.shape[_axis(self.specs[name])]
        self._copy_rows(name, self._row_address(name), (array.ctypes.data, count), count)
        self._device.wait()

    def move_rows(self, name: str, source: int, target: int, count: int) -> None:
        self._copy_rows(name, self._row_address(name, target), self._row_address(name, source), count)
        self._device.wait()

    def _row_address(self, name: str, row: int = 0) -> RowAddress:
        """The address of a row of a state, and its rows: those of a cache, else the slots."""
        return self._addresses[name] + row * self._row_size(name), self.shape(name)[_axis(self.specs[name])]

    def _row_size(self, name: str) -> int:
        return prod(self.shape(name)[_axis(self.specs[name]) + 1 :]) * self.dtype.itemsize

    def _copy_rows(self, name: str, target: RowAddress, source: RowAddress, count: int) -> None:
        """Copies rows of each head. Target and source are an address and a number of rows per head."""
        size, heads = self._row_size(name), prod(self.shape(name)[: _axis(self.specs[name])])
        (to, to_rows), (start, start_rows) = target, source
        self._device.copy((to, to_rows * size), (start, start_rows * size), count * size, heads)

    def slot(self, index: int) -> "DeviceStates":
        return DeviceStates(self._device, self.specs, self.dtype.name, shared=(self, index))

    def first(self, count: int) -> "DeviceStates":
        return DeviceStates(self._device, self.specs, self.dtype.name, count, (self, 0))


def _axis(state: StateSpec) -> int:
    """The axis of the rows of a cache, else the axis of the slots."""
    return row_axis(state) or 0
