"""Memory of CUDA in the order of one stream, and memory of the host in its place."""

import ctypes
from typing import Any

from voxport.runtime.engines.cuda import ANY_DIRECTION, Cuda, RowAddress
from voxport.runtime.engines.onnx import load_cuda, ort
from voxport.runtime.machine import measure_bandwidth


class Stream(Cuda):
    """A stream that calls and copies share. The host waits in `finish` only."""

    def __init__(self) -> None:
        load_cuda()
        super().__init__(str(ort.cuda_version))
        self.handle = ctypes.c_void_p()
        self._call("cudaStreamCreate", ctypes.byref(self.handle))

    def copy(self, target: RowAddress, source: RowAddress, width: int, height: int = 1) -> None:
        """In the order of the stream. A caller that reads or writes memory of the host calls `finish`."""
        pairs = [(ctypes.c_void_p(address), ctypes.c_size_t(pitch)) for address, pitch in (target, source)]
        size = (ctypes.c_size_t(width), ctypes.c_size_t(height))
        self._call("cudaMemcpy2DAsync", *pairs[0], *pairs[1], *size, ANY_DIRECTION, self.handle)

    def wait(self) -> None: ...

    def finish(self) -> None:
        super().wait()


class Host:
    """The memory of the host in place of a device."""

    name = "cpu"

    def __init__(self) -> None:
        self._blocks: dict[int, Any] = {}

    def allocate(self, size: int) -> int:
        block = ctypes.create_string_buffer(size)
        self._blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, address: int) -> None:
        del self._blocks[address]

    def clear(self, address: int, size: int) -> None:
        ctypes.memset(address, 0, size)

    def copy(self, target: RowAddress, source: RowAddress, width: int, height: int = 1) -> None:
        for row in range(height):
            ctypes.memmove(target[0] + row * target[1], source[0] + row * source[1], width)

    def wait(self) -> None: ...

    def finish(self) -> None: ...

    def bandwidth(self) -> float:
        return measure_bandwidth()
