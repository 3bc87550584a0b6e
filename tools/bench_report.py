"""`python tools/bench_report.py RUN.json ... --readme README.md --plot docs/bench.svg`: from what `runtime bench --json` printed.

Every figure of the README's table comes from here. Several runs of one bundle become a median and the range over them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- bench: made by tools/bench_report.py -->", "<!-- /bench -->"
REAL_TIME_MS = 80.0
# What a frame consists of: label and component; the rest of it is spent outside the graphs.
PARTS = {"backbone": "decode_step", "acoustic head": "acoustic_step", "codec": "codec_step", "code embedding": "embed_codes"}

Run = dict[str, Any]


def read(paths: list[Path]) -> dict[str, list[Run]]:
    """Runs by what was run, target and recipe, the fastest first. Eager, where it was timed beside a bundle, is a row of its own."""
    groups: dict[str, list[Run]] = {}
    for path in sorted(paths):
        run = json.loads(path.read_text())
        for found in (run, run.get("eager")):
            if found:
                groups.setdefault(f"{found['bundle']['target']} {found['bundle']['recipe']}", []).append(found)
    return dict(sorted(groups.items(), key=lambda group: statistics.median(run["frame"]["median_ms"] for run in group[1])))


def parts_of(run: Run) -> dict[str, float]:
    """Milliseconds of a frame by what they went into: medians of a call, times its calls a frame."""
    frames = run["frame"]["frames"]
    parts = {label: run["components"][name]["median_ms"] * run["components"][name]["calls"] / frames for label, name in PARTS.items()}
    return {**parts, "outside the graphs": run["frame"]["outside_ms"]}


def table(groups: dict[str, list[Run]]) -> str:
    """Markdown: a row for each target and recipe, and below it what it was measured on."""
    head = ["", "frame", "RTF", *list(PARTS)[:3], "of the floor", "first sound", "resident / bundle"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, runs in groups.items():
        cells = [
            name,
            _spread([run["frame"]["median_ms"] for run in runs], "{:.0f} ms"),
            _spread([run["rtf"] for run in runs], "{:.2f}"),
            *(_spread([parts_of(run)[label] for run in runs], "{:.0f} ms") for label in list(PARTS)[:3]),
            _spread([100 * run["frame"]["share_of_floor"] for run in runs], "{:.0f} %"),
            _spread([run["first_sound_s"] for run in runs], "{:.2f} s"),
            _spread([run["resident_bytes"] / run["bundle"]["bytes"] for run in runs], "{:.2f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *streams(groups), "", conditions(groups)])


def streams(groups: dict[str, list[Run]]) -> list[str]:
    """A second table, where runs spoke several utterances at once: frames of all of them a second."""
    rates: dict[str, dict[int, list[float]]] = {}
    for name, runs in groups.items():
        for row in (row for run in runs for row in run.get("streams", ())):
            rates.setdefault(name, {}).setdefault(row["streams"], []).append(row["frames_per_s"])
    if not rates:
        return []
    counts = sorted({count for found in rates.values() for count in found})
    lines = ["", "| utterances at once | " + " | ".join(map(str, counts)) + " |", "|---" * (1 + len(counts)) + "|"]
    for name, found in rates.items():
        cells = [_spread(found[count], "{:.1f} frames/s") if count in found else "-" for count in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _spread(values: list[float], form: str) -> str:
    """The median, and the range where there are several."""
    middle = form.format(statistics.median(values))
    number = form.split("}")[0] + "}"
    return middle if len(values) == 1 else f"{middle} ({number.format(min(values))}-{number.format(max(values))})"


def conditions(groups: dict[str, list[Run]]) -> str:
    runs = [run for found in groups.values() for run in found]
    first = runs[0]
    versions = sorted({f"{key} {value}" for run in runs for key, value in run["machine"].items() if key not in ("processor", "cores", "threads", "system")})
    machine = first["machine"]
    return (
        f"{first['bundle']['name']}; {machine['processor']}, {machine['threads']} threads, {machine['system']}; {', '.join(versions)}; memory read at"
        f" {_spread([run['bandwidth_gb_s'] for run in runs], '{:.0f} GB/s')}, measured in each run; medians of {first['frame']['frames']} frames,"
        f" {max(len(found) for found in groups.values())} runs (lowest-highest); {first['prompt_tokens']} text ids behind a voice of"
        f" {first['voice_rows']} rows that is known."
    )


def put(readme: Path, content: str) -> None:
    """Replaces what stands between the two marks. Raises SystemExit where they are missing."""
    text = readme.read_text()
    found = re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    if not found:
        raise SystemExit(f"{readme}: has no place for the table; expected the lines {BEGIN} and {END}")
    readme.write_text(text[: found.start()] + f"{BEGIN}\n{content}\n{END}" + text[found.end() :])


def plot(groups: dict[str, list[Run]], path: Path) -> None:
    """One bar for each target and recipe, stacked by component, and the line up to which speech keeps up with itself."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "voxport"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.5 * len(groups)), layout="constrained")
    for row, runs in enumerate(groups.values()):
        left = 0.0
        for number, label in enumerate([*PARTS, "outside the graphs"]):
            width = statistics.median(parts_of(run)[label] for run in runs)
            axes.barh(row, width, left=left, color=f"C{number}", label=label if row == 0 else None)
            left += width
    axes.axvline(REAL_TIME_MS, color="black", linestyle="--", linewidth=1, label="real time")
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set_xlabel("ms for one frame of 80 ms")
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="The README's table and plot from the JSON of `python -m runtime bench --json`.")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN.json")
    parser.add_argument("--readme", type=Path, help="put the table between this file's marks (default: print it)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the bars")
    arguments = parser.parse_args()
    groups = read(arguments.runs)
    if arguments.readme:
        put(arguments.readme, table(groups))
    else:
        print(table(groups))
    if arguments.plot:
        plot(groups, arguments.plot)


if __name__ == "__main__":
    main()
