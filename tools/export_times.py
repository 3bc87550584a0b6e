"""Measures one export in a process of its own, and writes its time and peak memory to docs/figures.

    python -m tools.export_times ID CHECKPOINT --target onnx --quant w4 [OPTION of voxport export ...]

The bundle is removed afterwards. The estimate of --dry-run is recorded as well.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.figures import Row, conditions, put
from voxport.bundle.json_types import Json
from voxport.runtime.machine import describe_machine


def export(*options: str) -> Json:
    """The result row of one export: a JSON object. Exits if the export fails."""
    command = [sys.executable, "-m", "voxport", "export", *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"export_times: the export ended with code {done.returncode}")
    row: Json = json.loads(done.stdout)[0]
    return row


def measured(name: str, checkpoint: Path, options: list[str]) -> Row:
    with tempfile.TemporaryDirectory(dir=checkpoint.parent) as folder:  # the system's may be in memory
        options = ["--checkpoint", str(checkpoint), *options, "--out", f"{folder}/bundle"]
        expected = export(*options, "--dry-run")
        started = time.perf_counter()
        row = export(*options)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "id": name,
        "seconds": f"{seconds:.0f}",
        "estimated_s": f"{expected['seconds']:.0f}",
        "peak_gb": f"{peak / 1e9:.1f}",
        "estimated_gb": f"{expected['memory_bytes'] / 1e9:.1f}",
        "bundle_gb": f"{row['bytes'] / 1e9:.2f}",
        "result": row["status"],
        **conditions(describe_machine(None, "torch")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("id", help="name of the row in docs/figures/exports.csv")
    parser.add_argument("checkpoint", type=Path)
    arguments, options = parser.parse_known_args()
    put("exports", [measured(arguments.id, arguments.checkpoint.resolve(), options)])


if __name__ == "__main__":
    main()
