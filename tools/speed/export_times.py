"""Runs one export in a process of its own. Records its time, its peak memory and the size of the bundle.

    export_times.py CHECKPOINT --target onnx --quant w4 -o OUT.json -- --cache-length 2048 --streaming

Options after -- go to `voxport export`. The bundle is written beside OUT.json and removed, unless they
contain --out. The estimate of --dry-run is recorded as well.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]


def export(*options: str) -> Json:
    """The result row of one export: a JSON object. Exits if the export fails."""
    command = [sys.executable, "-m", "voxport.export", "export", *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"export_times: the export ended with code {done.returncode}")
    row: Json = json.loads(done.stdout)[0]
    return row


def record(options: list[str], beside: Path) -> Json:
    with tempfile.TemporaryDirectory(dir=beside) as folder:  # the system's may be in memory
        options = ["--out", f"{folder}/bundle", *options]  # a later --out replaces this one
        expected = export(*options, "--dry-run")
        started = time.perf_counter()
        row = export(*options)
        seconds = time.perf_counter() - started
        job = Bundle(row["out"]).job
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    commit = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return {
        "bundle": {
            "name": job.source.name,
            "family": job.family,
            "target": job.target,
            "bytes": row["bytes"],
        },
        "request": job.request.model_dump(mode="json"),
        "status": row["status"],
        "seconds": round(seconds, 1),
        "peak_memory_bytes": peak * (1 if sys.platform == "darwin" else 1024),
        "estimated": {name: expected[name] for name in ("seconds", "memory_bytes", "disk_bytes")},
        "machine": describe_machine(None, "torch") | job.tools,
        "commit": subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip() or "?",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--quant", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:end])
    chosen = ["--target", arguments.target, "--quant", arguments.quant, *sys.argv[end + 1 :]]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    result = record(["--checkpoint", str(arguments.checkpoint.resolve()), *chosen], arguments.output.parent)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
