"""Memory of the exporting process: what is free, what was taken, and how it is given back."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import suppress

import psutil

from export.errors import ExportError


def check_memory(needed: int, what: str) -> None:
    """Raises ExportError where the machine has less free memory than an export is estimated to take."""
    free = psutil.virtual_memory().available
    if needed > free:
        raise ExportError(
            f"{what}: needs about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free;"
            " end other programs or take a larger machine, or a recipe of fewer bits; --no-verify needs less"
        )


def free_memory() -> None:
    """What loading and lowering leave: the C library keeps what it was given back, and traced programs hold themselves, and weights."""
    gc.collect()
    with suppress(AttributeError, OSError):  # glibc alone
        ctypes.CDLL(None).malloc_trim(0)


def peak_memory() -> float:
    """Of this process since it began, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
