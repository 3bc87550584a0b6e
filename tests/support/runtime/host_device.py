"""A device whose memory is that of the host: it does what `runtime.engines.cuda.Cuda` does, in NumPy."""

import numpy as np


class HostDevice:
    name = "cpu"

    def __init__(self) -> None:
        self.blocks: dict[int, np.ndarray] = {}
        self.allocations = 0
        self.waits = 0

    def allocate(self, size: int) -> int:
        block = np.zeros(size, np.uint8)
        self.blocks[block.ctypes.data] = block
        self.allocations += 1
        return block.ctypes.data

    def free(self, address: int) -> None:
        del self.blocks[address]

    def clear(self, address: int, size: int) -> None:
        _rows(address, size, size, 1)[:] = 0

    def copy(self, target: tuple[int, int], source: tuple[int, int], width: int, height: int = 1) -> None:
        assert height == 1 or min(target[1], source[1]) >= width  # as CUDA demands
        _rows(*target, width, height)[:] = _rows(*source, width, height)

    def wait(self) -> None:
        self.waits += 1

    def bandwidth(self) -> float:
        return 1e9


def _rows(address: int, pitch: int, width: int, height: int) -> np.ndarray:
    """A view of bytes [height, width] at an address."""
    interface = {"data": (address, False), "shape": (height, width), "strides": (pitch, 1)}
    view = type("View", (), {"__array_interface__": {**interface, "typestr": "|u1", "version": 3}})()
    return np.asarray(view)
