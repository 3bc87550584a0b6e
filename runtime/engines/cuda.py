"""States in the memory of the first CUDA device, through the CUDA runtime library that ONNX Runtime uses."""

import ctypes
import time
import weakref
from collections.abc import Mapping
from math import prod
from typing import Protocol

import numpy as np

from voxport.bundle.errors import VoxportError
from voxport.bundle.spec import StateSpec
from voxport.runtime.engines.states import States, first_rows

ANY_DIRECTION = 4  # cudaMemcpyDefault: the addresses say which memory they are in
PROBE_BYTES = 2**30  # far larger than the cache of a device
RowAddress = tuple[int, int]  # an address, and the bytes from row to row there


class Device(Protocol):
    """What `DeviceStates` needs of a device."""

    name: str

    def allocate(self, size: int) -> int: ...
    def free(self, address: int) -> None: ...
    def clear(self, address: int, size: int) -> None: ...
    def copy(self, target: RowAddress, source: RowAddress, width: int, height: int = 1) -> None: ...
    def wait(self) -> None: ...
    def bandwidth(self) -> float: ...


class Cuda:
    """Allocates and copies. Raises VoxportError with the code of CUDA."""

    name = "cuda"  # name of the device in ONNX Runtime

    def __init__(self, version: str):
        """`version`: the CUDA version that ONNX Runtime was built for, for example `13.0`."""
        self._library = ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}")

    def allocate(self, size: int) -> int:
        """Address of `size` zero bytes."""
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        assert address.value is not None
        self.clear(address.value, size)
        return address.value

    def free(self, address: int) -> None:
        self._library.cudaFree(ctypes.c_void_p(address))  # without a check: fails when the process ends

    def clear(self, address: int, size: int) -> None:
        self._call("cudaMemset", ctypes.c_void_p(address), 0, ctypes.c_size_t(size))
        self.wait()

    def copy(self, target: RowAddress, source: RowAddress, width: int, height: int = 1) -> None:
        """Copies `height` rows of `width` bytes. Target and source are an address and the bytes from row to
        row. Within the device, returns before the copy has ended.
        """
        pairs = [(ctypes.c_void_p(address), ctypes.c_size_t(pitch)) for address, pitch in (target, source)]
        size = (ctypes.c_size_t(width), ctypes.c_size_t(height))
        self._call("cudaMemcpy2D", *pairs[0], *pairs[1], *size, ANY_DIRECTION)

    def wait(self) -> None:
        """Returns when every copy has ended. ONNX Runtime's calls do not wait for them."""
        self._call("cudaDeviceSynchronize")

    def bandwidth(self, rounds: int = 5) -> float:
        """Bytes per second that copies within the device read and write: the best of `rounds`."""
        size = PROBE_BYTES // 2
        target, source = (self.allocate(size), size), (self.allocate(size), size)
        best = float("inf")
        for _ in range(rounds):
            started = time.perf_counter()
            self.copy(target, source, size)
            self.wait()
            best = min(best, time.perf_counter() - started)
        for address, _ in (target, source):
            self.free(address)
        return PROBE_BYTES / best

    def _call(self, function: str, *arguments: object) -> None:
        if code := getattr(self._library, function)(*arguments):
            raise VoxportError(f"device cuda: {function} failed with CUDA error {code}")


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
            size = self._size(name)
            self._device.copy((self._addresses[name], size), (self._results[name], size), size)
        if names:
            self._device.wait()

    def clear(self) -> None:
        for name, address in self._addresses.items():
            self._device.clear(address, self._size(name))

    def read(self, name: str, positions: int | None = None) -> np.ndarray:
        shape = list(self.shape(name))
        if rows := first_rows(self.specs[name], positions):
            shape[self.row_axis(name)] = rows[-1].stop
        found, count = np.empty(shape, self.dtype), shape[self.row_axis(name)]
        self._copy_rows(name, (found.ctypes.data, count), self._row_address(name), count)
        return found

    def write(self, name: str, values: np.ndarray) -> None:
        array = np.ascontiguousarray(values, self.dtype)
        count = array.shape[self.row_axis(name)]
        self._copy_rows(name, self._row_address(name), (array.ctypes.data, count), count)
        self._device.wait()

    def move_rows(self, name: str, source: int, target: int, count: int) -> None:
        self._copy_rows(name, self._row_address(name, target), self._row_address(name, source), count)

    def wait(self) -> None:
        self._device.wait()

    def _row_address(self, name: str, row: int = 0) -> RowAddress:
        """The address of a row of a state, and the number of its rows."""
        return self._addresses[name] + row * self._row_size(name), self.shape(name)[self.row_axis(name)]

    def _row_size(self, name: str) -> int:
        return prod(self.shape(name)[self.row_axis(name) + 1 :]) * self.dtype.itemsize

    def _copy_rows(self, name: str, target: RowAddress, source: RowAddress, count: int) -> None:
        """Copies rows of each head. Target and source are an address and a number of rows per head."""
        size, heads = self._row_size(name), prod(self.shape(name)[: self.row_axis(name)])
        (to, to_rows), (start, start_rows) = target, source
        self._device.copy((to, to_rows * size), (start, start_rows * size), count * size, heads)

    def part(self, first: int, count: int) -> "DeviceStates":
        return DeviceStates(self._device, self.specs, self.dtype.name, count, (self, first))
