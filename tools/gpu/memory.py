"""Memory of CUDA in the order of one stream, and memory of the host in its place."""

import ctypes
from typing import Any

from voxport.runtime.engines.cuda import Cuda
from voxport.runtime.engines.onnx import load_cuda, ort
from voxport.runtime.machine import measure_bandwidth


class Stream(Cuda):
    """Copies wait for the calls of the stream before them, and the host only for those that it reads."""

    def __init__(self) -> None:
        load_cuda()
        version = str(ort.cuda_version)
        super().__init__(version)
        self.handle = ctypes.c_void_p()
        ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}").cudaStreamCreate(ctypes.byref(self.handle))

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

    def copy(self, target: tuple[int, int], source: tuple[int, int], width: int, height: int = 1) -> None:
        for row in range(height):
            ctypes.memmove(target[0] + row * target[1], source[0] + row * source[1], width)

    def wait(self) -> None: ...

    def finish(self) -> None: ...

    def bandwidth(self) -> float:
        return measure_bandwidth()
