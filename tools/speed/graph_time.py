"""Processor time of a call of ONNX graphs, in turn, on one thread. Other programs may run.

    graph_time.py GRAPH.onnx... --size T=5 -o OUT.json

Integers of the inputs are 1, floats are normal noise times 0.1. Time is that of the calling thread, so it has
no waiting for a core. Other programs still slow the reading of memory. Medians in ms.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from voxport.runtime.engines.ort import ort
from voxport.runtime.machine import describe_machine

CALLS, WARM_UP = 12, 2


def open_session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.enable_mem_reuse = 1, False  # as the engine on one thread
    return ort.InferenceSession(path, options)


def example(session: ort.InferenceSession, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Inputs of a graph. A named dimension without a size is 1."""
    rng, inputs = np.random.default_rng(0), {}
    for spec in session.get_inputs():
        shape = [sizes.get(size, 1) if isinstance(size, str) else size for size in spec.shape]
        noise = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        inputs[spec.name] = np.ones(shape, np.int64) if "int64" in spec.type else noise
    return inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("graphs", type=Path, nargs="+", metavar="GRAPH.onnx")
    parser.add_argument("--size", action="append", default=[], help="NAME=N, a named dimension")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    sizes = {name: int(size) for name, size in (each.split("=") for each in arguments.size)}
    sessions = [open_session(path) for path in arguments.graphs]
    inputs = [example(session, sizes) for session in sessions]
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(WARM_UP + CALLS):
        for session, given, found in zip(sessions, inputs, times, strict=True):
            started = time.thread_time()
            session.run(None, given)
            found.append((time.thread_time() - started) * 1e3)
    names = [f"{path.parent.name}/{path.name}" for path in arguments.graphs]
    result = {
        "machine": describe_machine(1, "onnxruntime"),
        "sizes": sizes,
        "processor_ms": {
            name: float(np.median(found[WARM_UP:])) for name, found in zip(names, times, strict=True)
        },
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["processor_ms"]))


if __name__ == "__main__":
    main()
