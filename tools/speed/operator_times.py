"""Time of each operator of ONNX Runtime in a frame of 80 ms, from ONNX Runtime's own profile.

    operator_times.py BUNDLE [-o OUT.json]

The profile makes a frame slower, more so where a graph has many operators. For pages of 2 MB, set
GLIBC_TUNABLES=glibc.malloc.hugetlb=1.
"""

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.engines.onnx import OnnxEngine
from voxport.runtime.engines.ort import ort
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.families.base import BenchSettings
from voxport.runtime.machine import describe_machine

WARM_UP = 5
LARGEST = 8  # operators that are reported for each graph


class ProfiledEngine(OnnxEngine):
    """An engine whose sessions write a profile into `folder`."""

    folder: Path

    def _session_options(self) -> ort.SessionOptions:
        options = super()._session_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(self.folder / f"{len(self._sessions)}")
        return options

    def profiles(self) -> dict[str, list[Json]]:
        """Graph -> the events of its calls."""
        return {
            file: json.loads(Path(session.end_profiling()).read_text())
            for file, session in self._sessions.items()
        }


def operator_times(events: list[Json], frames: int) -> Json:
    """Milliseconds of each operator in a frame, the longest first.

    A graph may be called several times in a frame, and may serve another component (such as the prompt)
    before the first one. Calls are divided by frames from the end of the profile.
    """
    calls: list[dict[str, int]] = []
    for event in sorted(events, key=lambda event: event["ts"]):
        if event["name"] == "model_run":
            calls.append(defaultdict(int))
        elif event["cat"] == "Node" and event["name"].endswith("_kernel_time") and calls:
            calls[-1][event["args"]["op_name"]] += event["dur"]
    per_frame = len(calls) // frames
    if not per_frame:
        return {}
    groups = [calls[end - per_frame : end] for end in range(len(calls), WARM_UP * per_frame, -per_frame)]
    names = {name for call in calls for name in call}
    times = {
        name: median(sum(call.get(name, 0) for call in group) for group in groups) / 1e3 for name in names
    }
    ranked = sorted(times.items(), key=lambda item: -item[1])
    return {"calls": per_frame, "ms": sum(times.values()), "operators": dict(ranked[:LARGEST])}


def measure(folder: Path, threads: int, frames: int) -> Json:
    bundle = Bundle(folder)
    family, constants = open_family(bundle.job.family), read_constants(bundle.job)
    engine = ProfiledEngine(bundle, EngineOptions(threads))
    with TemporaryDirectory() as profiles:
        engine.folder = Path(profiles)
        settings = BenchSettings(family.bench.voice(bundle, constants), 5, ())
        workload = family.bench.start(engine.stream(), constants, settings, None)
        for _ in range(frames):
            workload.step()
        graphs = {file: operator_times(events, frames) for file, events in engine.profiles().items()}
    return {
        "family": bundle.job.family,
        "recipe": bundle.job.request.quant,
        "machine": describe_machine(threads, "onnxruntime"),
        "bandwidth_gb_s": engine.bandwidth(threads),
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES", ""),
        "frames": frames - WARM_UP,
        "graphs": {file: times for file, times in graphs.items() if times},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("-o", "--out", type=Path, help="JSON file")
    arguments = parser.parse_args()
    row = measure(arguments.bundle, arguments.threads, arguments.frames)
    if arguments.out:
        arguments.out.write_text(json.dumps(row, indent=1) + "\n")
    for file, times in row["graphs"].items():
        operators = ", ".join(f"{name} {ms:.1f}" for name, ms in times["operators"].items())
        print(f"{file}: {times['calls']} calls, {times['ms']:.1f} ms: {operators}")


if __name__ == "__main__":
    main()
