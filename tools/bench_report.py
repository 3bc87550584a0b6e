"""`python tools/bench_report.py docs/bench/FAMILY/*.json --readme README.md --plot docs/bench/FAMILY.svg`: from what `runtime bench --json`
printed for bundles of one family.

Every figure of the README's tables comes from here. Several runs of one bundle become a median and the range over them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REAL_TIME_MS = 80.0

Run = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """What is told of a family. A frame consists of `parts`, label and component, of which the last is in the plot alone; the rest of it is
    spent outside the graphs. `together` heads the table of what was timed at once: its title, the key of a row's number, what is told of
    each row."""

    frame: str
    parts: dict[str, str]
    first: tuple[str, str]
    together: tuple[str, str, Callable[[Run], float], str]
    setting: str

    @property
    def columns(self) -> list[str]:
        return list(self.parts)[:-1]


FAMILIES = {
    "voxtral_tts": Shown(
        frame="frame",
        parts={
            "backbone": "decode_step",
            "acoustic head": "acoustic_step",
            "codec": "codec_step",
            "code embedding": "embed_codes",
        },
        first=("first sound", "first_sound_s"),
        together=("utterances at once", "streams", lambda row: row["frames_per_s"], "{:.1f} frames/s"),
        setting="; {prompt_tokens} text ids behind a voice of {voice_rows} rows that is known",
    ),
    "voxtral_realtime": Shown(
        frame="live step of 80 ms",
        parts={
            "encoder": "encode_chunk",
            "decoder and head": "decode_step",
            "token embedding": "embed_tokens",
        },
        first=("first token", "first_token_s"),
        together=("chunks encoded at once: each", "chunks", lambda row: row["step_ms"], "{:.0f} ms"),
        setting="",
    ),
}


def read(paths: list[Path]) -> dict[str, list[Run]]:
    """Runs by what was run, target and recipe, the fastest first. Eager, where it was timed beside a bundle, is a row of its own.

    Raises SystemExit where they are of several families.
    """
    groups: dict[str, list[Run]] = {}
    for path in sorted(paths):
        run = json.loads(path.read_text())
        for found in (run, run.get("eager")):
            if found:
                groups.setdefault(f"{found['bundle']['target']} {found['bundle']['recipe']}", []).append(
                    found
                )
    families = {run["bundle"]["family"] for runs in groups.values() for run in runs}
    if len(families) > 1:
        raise SystemExit(f"runs of {' and '.join(sorted(families))}: expected those of one family")
    return dict(
        sorted(
            groups.items(), key=lambda group: statistics.median(run["frame"]["median_ms"] for run in group[1])
        )
    )


def shown(groups: dict[str, list[Run]]) -> Shown:
    return FAMILIES[next(iter(groups.values()))[0]["bundle"]["family"]]


def parts_of(run: Run) -> dict[str, float]:
    """Milliseconds of a frame by what they went into: medians of a call, times its calls a frame."""
    frames, parts = run["frame"]["frames"], FAMILIES[run["bundle"]["family"]].parts
    parts = {
        label: run["components"][name]["median_ms"] * run["components"][name]["calls"] / frames
        for label, name in parts.items()
    }
    return {**parts, "outside the graphs": run["frame"]["outside_ms"]}


def table(groups: dict[str, list[Run]]) -> str:
    """Markdown: a row for each target and recipe, and below it what it was measured on."""
    family = shown(groups)
    head = ["", family.frame, "RTF", *family.columns, "MBU", family.first[0], "resident / bundle"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, runs in groups.items():
        cells = [
            name,
            _spread([run["frame"]["median_ms"] for run in runs], "{:.0f} ms"),
            _spread([run["rtf"] for run in runs], "{:.2f}"),
            *(_spread([parts_of(run)[label] for run in runs], "{:.0f} ms") for label in family.columns),
            _spread([100 * run["frame"]["mbu"] for run in runs], "{:.0f} %"),
            _spread([run[family.first[1]] for run in runs], "{:.2f} s"),
            _spread([run["resident_bytes"] / run["bundle"]["bytes"] for run in runs], "{:.2f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *together(groups), "", conditions(groups)])


def together(groups: dict[str, list[Run]]) -> list[str]:
    """A second table, where runs timed several utterances, or several chunks, at once."""
    title, number, told, form = shown(groups).together
    figures: dict[str, dict[int, list[float]]] = {}
    for name, runs in groups.items():
        for row in (row for run in runs for row in run.get("streams", ())):
            figures.setdefault(name, {}).setdefault(row[number], []).append(told(row))
    if not figures:
        return []
    counts = sorted({count for found in figures.values() for count in found})
    lines = ["", f"| {title} | " + " | ".join(map(str, counts)) + " |", "|---" * (1 + len(counts)) + "|"]
    for name, found in figures.items():
        cells = [_spread(found[count], form) if count in found else "-" for count in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _spread(values: list[float], form: str) -> str:
    """The median, and the range where there are several."""
    middle = form.format(statistics.median(values))
    number = form.split("}")[0] + "}"
    return (
        middle
        if len(values) == 1
        else f"{middle} ({number.format(min(values))}-{number.format(max(values))})"
    )


def conditions(groups: dict[str, list[Run]]) -> str:
    runs = [run for found in groups.values() for run in found]
    first = runs[0]
    versions = sorted(
        {
            f"{key} {value}"
            for run in runs
            for key, value in run["machine"].items()
            if key not in ("processor", "cores", "threads", "system")
        }
    )
    machine = first["machine"]
    return (
        f"{first['bundle']['name']}; {machine['processor']}, {machine['threads']} threads, {machine['system']}; {', '.join(versions)}; memory read at"
        f" {_spread([run['bandwidth_gb_s'] for run in runs], '{:.0f} GB/s')}, measured in each run; medians of {first['frame']['frames']} frames,"
        f" {max(len(found) for found in groups.values())} runs (lowest-highest){shown(groups).setting.format_map(first)}."
    )


def put(readme: Path, family: str, content: str) -> None:
    """Replaces what stands between the family's two marks. Raises SystemExit where they are missing."""
    begin, end, text = (
        f"<!-- bench {family}: made by tools/bench_report.py -->",
        f"<!-- /bench {family} -->",
        readme.read_text(),
    )
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
    if not found:
        raise SystemExit(f"{readme}: has no place for the table; expected the lines {begin} and {end}")
    readme.write_text(text[: found.start()] + f"{begin}\n{content}\n{end}" + text[found.end() :])


def plot(groups: dict[str, list[Run]], path: Path) -> None:
    """One bar for each target and recipe, stacked by component, and the line up to which it keeps up with the sound."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "voxport"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.5 * len(groups)), layout="constrained")
    for row, runs in enumerate(groups.values()):
        left = 0.0
        for number, label in enumerate([*shown(groups).parts, "outside the graphs"]):
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
    parser = argparse.ArgumentParser(
        description="The README's table and plot from the JSON of `python -m runtime bench --json`."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN.json")
    parser.add_argument(
        "--readme", type=Path, help="put the table between this file's marks (default: print it)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the bars")
    arguments = parser.parse_args()
    groups = read(arguments.runs)
    if arguments.readme:
        put(arguments.readme, next(iter(groups.values()))[0]["bundle"]["family"], table(groups))
    else:
        print(table(groups))
    if arguments.plot:
        plot(groups, arguments.plot)


if __name__ == "__main__":
    main()
