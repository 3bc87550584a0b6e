"""Memory of the first CUDA device, through the CUDA runtime library that ONNX Runtime uses."""

import ctypes
import time

from voxport.bundle.errors import VoxportError

ANY_DIRECTION = 4  # cudaMemcpyDefault: the addresses say which memory they are in
PROBE_BYTES = 2**30  # far larger than the cache of a device


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

    def copy(self, target: tuple[int, int], source: tuple[int, int], width: int, height: int = 1) -> None:
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
