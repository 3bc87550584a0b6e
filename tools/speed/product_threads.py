"""Times an ExecuTorch bundle with and without the limit on the threads of MKL, in processes that take turns.

    product_threads.py BUNDLE [--rounds 3] [--frames 20] [--threads 2] -o docs/bench/product_threads/NAME.json

`custom_sdpa` multiplies with MKL in every thread of ExecuTorch's pool. The engine lets MKL use one thread for
each of these products. Without that limit, MKL divides each product among threads of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from voxport.runtime.machine import describe_machine, measure_bandwidth

BENCH = """
import sys
from unittest import mock
from voxport.__main__ import main
if sys.argv.pop(1) == "without":
    mock.patch("voxport.runtime.engines.executorch._multiply_in_the_calling_thread").start()
sys.exit(main(sys.argv[1:]))
"""


def bench(bundle: Path, limit: str, frames: int, threads: int) -> dict[str, Any]:
    """The figures of `voxport bench`, in a process of its own."""
    options = ["--frames", str(frames), "--threads", str(threads), "--json", "--quiet"]
    command = [sys.executable, "-c", BENCH, limit, "bench", str(bundle), *options]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over runs of the median time of each component and of a frame."""
    parts = [{**run["components"], "frame": run["frame"]} for run in runs]
    return {name: statistics.median(part[name]["median_ms"] for part in parts) for name in parts[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    for _ in range(arguments.rounds):
        for limit, found in runs.items():
            found.append(bench(arguments.bundle, limit, arguments.frames, arguments.threads))
    result = {
        "machine": describe_machine(arguments.threads, "executorch"),
        "bandwidth_gb_s": measure_bandwidth(arguments.threads) / 1e9,
        "bundle": runs["with"][0]["bundle"],
        "median_ms": {limit: medians(found) for limit, found in runs.items()},
        "runs": runs,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
