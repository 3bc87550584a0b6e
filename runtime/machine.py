"""The conditions of a benchmark: the machine, its memory bandwidth, the memory of this process."""

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from voxport.bundle.versions import package_version

PROBE_BYTES = 2**29  # far larger than any processor cache
INSTRUCTIONS = {  # by their names in Linux
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "amx_int8": "AMX",
}


def describe_machine(threads: int | None, package: str) -> dict[str, str | int | None]:
    """Processor, threads and versions as JSON values; `package` is the package of the engine.

    `instructions`: vector instructions of the processor, if Linux says them (None).
    """
    flags = (_cpuinfo("flags") or "").split()
    return {
        "processor": _cpuinfo("model name") or platform.processor() or "?",
        "instructions": ", ".join(name for flag, name in INSTRUCTIONS.items() if flag in flags) or None,
        "cores": os.cpu_count(),
        "threads": threads or os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        package: package_version(package),
    }


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(key))
    except (OSError, StopIteration):
        return None


def measure_bandwidth(threads: int | None = None, rounds: int = 5) -> float:
    """Bytes per second that all threads read together from memory: the best of `rounds` over half a
    gigabyte.
    """
    count = threads or os.cpu_count() or 1
    parts = np.array_split(np.ones(PROBE_BYTES // 4, np.float32), count)

    def read(part: np.ndarray) -> None:
        part.max()  # vectorised, and so bound by memory

    best = float("inf")
    with ThreadPoolExecutor(count) as pool:
        for _ in range(rounds):
            started = time.perf_counter()
            list(pool.map(read, parts))
            best = min(best, time.perf_counter() - started)
    return PROBE_BYTES / best


def resident_bytes() -> int | None:
    """Resident memory of this process and its children as Linux counts it; None on other systems.

    An engine may run in a child.
    """
    try:
        children = [
            pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()
        ]
        found = (Path("/proc", pid, "statm").read_text().split()[1] for pid in ("self", *children))
        return sum(map(int, found)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
