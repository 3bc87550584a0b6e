"""Processor time of a step of 80 ms outside the calls of ONNX Runtime and ExecuTorch: what Python takes.

    step_overhead.py BUNDLE... -o OUT.json

Small bundles have the same calls as large ones. The clock is that of the calling thread: other programs and
threads of the engine do not count.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401  loads the libraries of the next module
from executorch.extension.pybindings._portable_lib import ExecuTorchMethod

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines import ENGINES, open_engine
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.engines.ort import ort
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.families.base import BenchSettings
from voxport.runtime.machine import describe_machine

NATIVE = (
    (ort.InferenceSession, "run"),
    (ort.InferenceSession, "run_with_iobinding"),
    (ExecuTorchMethod, "__call__"),
)
WARM_UP = 10


def count_seconds(owner: Any, name: str, seconds: list[float]) -> None:
    """Adds the time of every call of a method to `seconds[0]`. The owner is a class of another package."""
    call: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any) -> Any:
        started = time.thread_time()
        try:
            return call(*args)
        finally:
            seconds[0] += time.thread_time() - started

    setattr(owner, name, timed)


def measure(folder: Path, threads: int, steps: int, native: list[float]) -> Json:
    """Median in ms of a step outside the native calls."""
    bundle = Bundle(folder)
    family, constants = open_family(bundle.job.family), read_constants(bundle.job)
    settings = BenchSettings(family.bench.voice(bundle, constants), 5, ())
    stream = open_engine(bundle, EngineOptions(threads)).stream()
    workload = family.bench.start(stream, constants, settings, None)
    outside = []
    for _ in range(WARM_UP + steps):
        before, started = native[0], time.thread_time()
        workload.step()
        outside.append(time.thread_time() - started - (native[0] - before))
    return {
        "family": bundle.job.family,
        "target": bundle.job.target,
        "recipe": bundle.job.request.quant,
        "machine": describe_machine(threads, ENGINES[bundle.job.target].packages[0]),
        "outside_ms": float(np.median(outside[WARM_UP:])) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    native = [0.0]
    for owner, name in NATIVE:
        count_seconds(owner, name, native)
    rows = [measure(folder, arguments.threads, arguments.steps, native) for folder in arguments.bundles]
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(f"{row['family']} {row['target']}: {row['outside_ms']:.2f} ms")


if __name__ == "__main__":
    main()
