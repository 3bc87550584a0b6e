"""Distance of Qwen3-TTS bundles from the official package, for all runs of the three golden checkpoints.

    PYTHONPATH=.:tests python tools/accuracy/golden_qwen3.py --target executorch --folder FOLDER -o OUT.json

Bundles have no quantisation. Core ML bundles are made and run in float32, on Linux by the reference executor.
A bundle that is already in FOLDER is not exported again. Exit code 1: a difference is beyond its bar, or
codes are not equal.
"""

import argparse
import json
import logging
import tempfile
from pathlib import Path

from parity.test_golden_qwen3 import BAR, RUNS
from support.export.golden_qwen3 import BARS, CASES, PRECISION, Golden, golden_bundle, misses

from voxport.runtime.engines import ENGINES
from voxport.runtime.machine import describe_machine

log = logging.getLogger(__name__)
Differences = dict[str, float | bool]


def largest(rows: list[Differences]) -> dict[str, float | str]:
    """The largest difference of each array, and how many times codes are equal."""
    found: dict[str, float | str] = {}
    for key in sorted({key for row in rows for key in row}):
        values = [row[key] for row in rows if key in row]
        equal = sum(value is True for value in values)
        found[key] = f"{equal} of {len(values)} equal" if isinstance(values[0], bool) else max(values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", required=True, help="onnx, executorch or coreml")
    parser.add_argument("--checkpoints", default=",".join(RUNS), help="default: all three")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the bundles")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    runs: dict[str, Differences] = {}
    stages: Differences = {}
    opened: Golden | None = None
    with tempfile.TemporaryDirectory() as inputs:
        for name, run in CASES:
            if name not in arguments.checkpoints.split(","):
                continue
            if opened is None or opened.name != name:
                opened = golden_bundle(
                    name, arguments.target, arguments.folder / f"{name}-{arguments.target}"
                )
                if name == "base":  # its reference has the stages
                    stages = opened.stages()
            runs[f"{name}/{run}"] = opened.run(run, Path(inputs))
            log.info("%s/%s: %s", name, run, json.dumps(runs[f"{name}/{run}"]))
    assert opened is not None
    result = {
        "machine": describe_machine(None, ENGINES[arguments.target].packages[0]),
        "target": arguments.target,
        "precision": PRECISION.get(arguments.target, "float32"),
        "bars": {"others": BAR, **BARS},
        "misses": [f"{name}: {miss}" for name, row in runs.items() for miss in misses(row)] + misses(stages),
        "largest": largest(list(runs.values())),
        "stages": stages,
        "runs": runs,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    log.info("%s", json.dumps(result["largest"], indent=1))
    raise SystemExit(1 if result["misses"] else 0)


if __name__ == "__main__":
    main()
