"""Times `voxport say` with one frame, from the start of the process: what it takes to open a bundle.

    open_times.py BUNDLE [--runs 3] [--threads 2] [--other CHECKOUT] -o OUT.json

Each run is a process with an empty cache folder of the user, which is the first use of the bundle, and then
one with the same folder. `--other` is a checkout of another commit, whose runs come between those of this
one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines import ENGINES
from voxport.runtime.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
USES = ("first use", "later")


def speak(checkout: Path, bundle: Path, threads: int, folder: Path) -> dict[str, float]:
    """Seconds and processor seconds of one process with those that it started, and the peak memory of the
    largest of them.
    """
    command = [sys.executable, "-P", "-m", "voxport", "say", "Hello.", "--bundle", str(bundle)]
    command += ["--threads", str(threads), "--max-frames", "1", "-o", str(folder / "out.wav")]
    environment = os.environ | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(folder)}
    started = time.perf_counter()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
        _, status, used = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"open_times: {' '.join(command)}: code {code}: {(folder / 'log.txt').read_text()}")
    return {
        "seconds": time.perf_counter() - started,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def measure(checkouts: list[Path], bundle: Path, runs: int, threads: int) -> list[Json]:
    """One row for each checkout and use: medians, and the least and the largest time."""
    found: dict[tuple[Path, str], list[dict[str, float]]] = {}
    for _ in range(runs):
        for checkout in checkouts:
            with tempfile.TemporaryDirectory() as folder:
                for use in USES:
                    result = speak(checkout, bundle, threads, Path(folder))
                    found.setdefault((checkout, use), []).append(result)
    return [
        {
            "commit": commit(checkout),
            "use": use,
            **{name: round(statistics.median(run[name] for run in results), 2) for name in results[0]},
            "least_and_most_seconds": [
                round(end(run["seconds"] for run in results), 2) for end in (min, max)
            ],
        }
        for (checkout, use), results in found.items()
    ]


def commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="a checkout of another commit")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    checkouts = [ROOT, *([arguments.other] if arguments.other else [])]
    job = Bundle(arguments.bundle).job
    result = {
        "bundle": {"name": job.source.name, "family": job.family, "target": job.target},
        "runs": measure(checkouts, arguments.bundle.absolute(), arguments.runs, arguments.threads),
        "machine": describe_machine(arguments.threads, ENGINES[job.target].packages[0]),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
