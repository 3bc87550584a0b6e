"""Memory of the exporting process: what is free, what was taken, and how it is given back."""

import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from voxport.bundle.errors import ExportError

CGROUP = Path("/sys/fs/cgroup")
# Bytes that a process may have, and take since memory was last returned, before it is returned. The packages
# of a target alone take up to 0.6 GB, and a collection of their objects takes a second or more.
MIN_RESIDENT, MIN_GROWTH = 1.5e9, 0.25e9
# New objects after which Python looks for reference cycles while a graph is lowered. With the default, 700,
# that takes a tenth of the time, because tracing makes millions of objects and few of them are garbage.
COLLECTION_THRESHOLD = 20_000
_resident_after_return = 0  # in bytes


def check_memory(needed: int, what: str, advice: str) -> None:
    """Raises ExportError if `what` needs more bytes than the machine or its container has free. `advice` is
    what else may help.
    """
    free = min(psutil.virtual_memory().available, _free_in_container())
    if needed > free:
        raise ExportError(
            f"{what}: needs about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free;"
            f" end other programs, take a larger machine, or {advice}"
        )


def _free_in_container() -> float:
    """Bytes that the control group of this process still allows (Linux), or infinity without a limit.

    Cached file pages count as free.
    """
    try:
        most, taken = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        parts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return most - taken + int(parts["inactive_file"]) + int(parts["active_file"])
    except (OSError, ValueError, KeyError):  # no such files, or "max"
        return float("inf")


def free_memory() -> None:
    """Returns memory to the system if the process has at least `MIN_RESIDENT`, and `MIN_GROWTH` more than
    after the last return.

    Traced programs are in reference cycles and hold weights. The C library keeps freed memory until a trim.
    """
    global _resident_after_return
    _resident_after_return = min(_resident_after_return, resident := _resident())
    if resident < max(MIN_RESIDENT, _resident_after_return + MIN_GROWTH):
        return
    gc.collect()
    with suppress(AttributeError, OSError):  # glibc alone
        ctypes.CDLL(None).malloc_trim(0)
    _resident_after_return = _resident()


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Lets Python look for reference cycles after `COLLECTION_THRESHOLD` new objects."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECTION_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def peak_memory() -> float:
    """Peak memory of this process since its start, in GB."""
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    )
