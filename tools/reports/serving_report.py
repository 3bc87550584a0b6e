"""Writes the table of docs/serving.md from `tools/speed/serve_figures.py`.

serving_report.py docs/bench/serving/speech.json --document docs/serving.md
"""

import argparse
import json
from pathlib import Path

from bench_report import put

from voxport.bundle.json_types import Json

COLUMNS = (
    "bundle",
    "clients at a time",
    "first sound, median",
    "first sound, last client",
    "frames per second",
)


def table(found: Json) -> str:
    """A row for each bundle and number of clients, times to a refusal and to a free slot, and conditions."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for name, bundle in found["bundles"].items():
        for clients, figures in bundle["clients"].items():
            sound = (f"{figures[key]:.2f} s" for key in ("first_sound_s", "last_first_sound_s"))
            threads = f"{bundle['threads']} thread{'s' if bundle['threads'] > 1 else ''}"
            size = f"{bundle['target']} {bundle['recipe']}, {bundle['bytes'] / 1e6:.1f} MB"
            label = f"{name}, {size}, {bundle['slots']} slots, {threads}"
            rows.append((label, clients, *sound, f"{figures['frames_per_s']:.0f}"))
    lines = [f"| {' | '.join(row)} |" for row in rows] + [""]
    for key, what in (
        ("refusal_ms", "refusal while the queue is full"),
        ("cancel_ms", "free slot after a client leaves"),
    ):
        times = [bundle[key] for bundle in found["bundles"].values()]
        medians = " and ".join(f"{each['median']:.0f}" for each in times)
        lines.append(
            f"- Time to a {what}: {medians} ms (medians), at most {max(e['max'] for e in times):.0f} ms."
        )
    condition = found["conditions"]
    runs = f"answers of {condition['frames']} frames, medians of {condition['runs']} runs"
    machine = f"{condition['processor']}, onnxruntime {condition['onnxruntime']}"
    lines.append(f"- {machine}; load average before: {condition['load_average_before']}.")
    lines.append(f"- {runs.capitalize()}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument("--document", type=Path, required=True)
    arguments = parser.parse_args()
    put(arguments.document, "serving", table(json.loads(arguments.result.read_text())), "serving_report")


if __name__ == "__main__":
    main()
