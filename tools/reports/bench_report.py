"""Writes the tables and plots of docs/performance.md, and the table of README.md, from `bench --json`.

    bench_report.py docs/bench/FAMILY/*.json --document docs/performance.md --plot docs/bench/FAMILY.svg
    bench_report.py docs/bench/voxtral_*/*.json --summary README.md

Several runs of one bundle give a median and a range.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from voxport.bundle.json_types import Json

REAL_TIME_MS = 80.0
COLUMNS = 110  # of a line of text

Run = Json
Groups = dict[str, list[Run]]  # the runs of each target and recipe


@dataclass(frozen=True)
class Layout:
    """The columns of a family.

    task, frame: what is done, and its unit.
    parts: label -> component, of all components of a frame. The last one is in the plot only.
    first: label and key of the time to the first output.
    batches: the second table: title, key of a row's count, value of a row, format.
    setting: appended to the conditions.
    """

    task: str
    frame: str
    parts: dict[str, str]
    first: tuple[str, str]
    batches: tuple[str, str, Callable[[Run], float], str]
    setting: str

    @property
    def columns(self) -> list[str]:
        return list(self.parts)[:-1]


LAYOUTS = {
    "voxtral_tts": Layout(
        task="text to speech",
        frame="frame",
        parts={
            "backbone": "decode_step",
            "acoustic head": "acoustic_step",
            "codec": "codec_step",
            "code embedding": "embed_codes",
        },
        first=("first sound", "first_sound_s"),
        batches=("utterances per batch", "streams", lambda row: row["frames_per_s"], "{:.1f} frames/s"),
        setting="; {prompt_tokens} text ids after a voice of {voice_rows} rows whose prefix is cached",
    ),
    "qwen3_tts": Layout(
        task="text to speech",
        frame="frame",
        parts={
            "talker": "decode_step",
            "code predictor": "code_predictor",
            "codec": "codec_step",
            "code embedding": "embed_codes",
        },
        first=("first sound", "first_sound_s"),
        batches=("utterances per batch", "streams", lambda row: row["frames_per_s"], "{:.1f} frames/s"),
        setting="; {prompt_tokens} text ids behind a cached prefix",
    ),
    "voxtral_realtime": Layout(
        task="speech to text",
        frame="live step of 80 ms",
        parts={
            "encoder": "encode_chunk",
            "decoder and head": "decode_step",
            "token embedding": "embed_tokens",
        },
        first=("first token", "first_token_s"),
        batches=("steps per encoder call", "chunks", lambda row: row["step_ms"], "{:.0f} ms per step"),
        setting="",
    ),
}


def read(paths: list[Path]) -> dict[str, Groups]:
    """Runs by family, then by target and recipe, the fastest first. Eager runs are groups of their own."""
    families: dict[str, Groups] = {}
    for path in sorted(paths):
        run = json.loads(path.read_text())
        for found in (run, run.get("eager")):
            if found:
                bundle = found["bundle"]
                groups = families.setdefault(bundle["family"], {})
                groups.setdefault(f"{bundle['target']} {bundle['recipe']}", []).append(found)
    ordered = {family: families[family] for family in LAYOUTS if family in families}
    return {family: dict(sorted(groups.items(), key=_median_frame)) for family, groups in ordered.items()}


def _median_frame(group: tuple[str, list[Run]]) -> float:
    return statistics.median([float(run["frame"]["median_ms"]) for run in group[1]])


def layout_of(groups: Groups) -> Layout:
    return LAYOUTS[next(iter(groups.values()))[0]["bundle"]["family"]]


def parts_of(run: Run) -> dict[str, float]:
    """Milliseconds of a frame by label: the median of a call times its calls per frame."""
    frames, parts = run["frame"]["frames"], LAYOUTS[run["bundle"]["family"]].parts
    milliseconds = {
        label: run["components"][name]["median_ms"] * run["components"][name]["calls"] / frames
        for label, name in parts.items()
    }
    return {**milliseconds, "outside the graphs": run["frame"]["outside_ms"]}


def table(groups: Groups) -> str:
    """Markdown: a row for each target and recipe, then the conditions. A part has its time and its MBU."""
    layout = layout_of(groups)
    head = [
        "",
        layout.frame,
        "RTF",
        *(f"{label}, MBU" for label in layout.columns),
        "MBU",
        layout.first[0],
        "resident / bundle",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, runs in groups.items():
        cells = [
            name,
            _spread([run["frame"]["median_ms"] for run in runs], "{:.0f} ms"),
            _spread([run["rtf"] for run in runs], "{:.2f}"),
            *(_part(runs, label) for label in layout.columns),
            _spread([100 * run["frame"]["mbu"] for run in runs], "{:.0f} %"),
            _spread([run[layout.first[1]] for run in runs], "{:.2f} s"),
            _spread([run["resident_bytes"] / run["bundle"]["bytes"] for run in runs], "{:.2f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    runs = _all_runs(groups)
    name, setting = runs[0]["bundle"]["name"], layout.setting.format_map(runs[0])
    return "\n".join([*lines, *batch_table(groups), "", wrapped(f"{name}; {conditions(runs)}{setting}.")])


def _part(runs: list[Run], label: str) -> str:
    name = layout_of({"": runs}).parts[label]
    mbu = statistics.median(run["components"][name]["gb_s"] / run["bandwidth_gb_s"] for run in runs)
    return f"{_spread([parts_of(run)[label] for run in runs], '{:.0f} ms')}, {100 * mbu:.0f} %"


def batch_table(groups: Groups) -> list[str]:
    """A second table, if runs timed several batch sizes."""
    title, key, value, form = layout_of(groups).batches
    figures: dict[str, dict[int, list[float]]] = {}
    for name, runs in groups.items():
        for row in (row for run in runs for row in run.get("streams", ())):
            figures.setdefault(name, {}).setdefault(row[key], []).append(value(row))
    if not figures:
        return []
    counts = sorted({count for found in figures.values() for count in found})
    lines = ["", f"| {title} | " + " | ".join(map(str, counts)) + " |", "|---" * (1 + len(counts)) + "|"]
    for name, found in figures.items():
        cells = [_spread(found[count], form) if count in found else "-" for count in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def summary(families: dict[str, Groups]) -> str:
    """Markdown: a row for each family, target and recipe, with the time of 80 ms of audio and the RTF."""
    lines = ["| task | bundle | time for 80 ms | RTF | first output |", "|---|---|---|---|---|"]
    for groups in families.values():
        layout = layout_of(groups)
        for name, runs in groups.items():
            cells = [
                layout.task,
                name,
                _spread([run["frame"]["median_ms"] for run in runs], "{:.0f} ms"),
                _spread([run["rtf"] for run in runs], "{:.2f}"),
                _spread([run[layout.first[1]] for run in runs], "{:.2f} s"),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    runs = [run for groups in families.values() for run in _all_runs(groups)]
    return "\n".join([*lines, "", wrapped(f"{conditions(runs)}.")])


def _all_runs(groups: Groups) -> list[Run]:
    return [run for found in groups.values() for run in found]


def _spread(values: list[float], form: str) -> str:
    """The median, and the range if there are several values."""
    middle = form.format(statistics.median(values))
    number = form.split("}")[0] + "}"
    if len(values) == 1:
        return middle
    return f"{middle} ({number.format(min(values))}-{number.format(max(values))})"


def conditions(runs: list[Run]) -> str:
    """Machine, versions, bandwidth and number of runs."""
    other = ("processor", "instructions", "cores", "threads", "system")
    versions = {f"{key} {value}" for run in runs for key, value in run["machine"].items() if key not in other}
    machine, bundles = runs[0]["machine"], [tuple(run["bundle"].values()) for run in runs]
    bandwidth = _spread([run["bandwidth_gb_s"] for run in runs], "{:.0f} GB/s")
    repeats = max(bundles.count(bundle) for bundle in bundles)
    return (
        f"{machine['processor']}, {machine['threads']} threads, {machine['system']}; "
        f"{', '.join(sorted(versions))}; memory read at {bandwidth}, measured in each run; "
        f"medians of {runs[0]['frame']['frames']} frames, {repeats} runs (lowest-highest)"
    )


def wrapped(text: str) -> str:
    """The text in lines of at most `COLUMNS` characters."""
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def put(document: Path, name: str, content: str, tool: str = "bench_report") -> None:
    """Replaces the text between the two markers called `name`. Raises SystemExit if they are missing."""
    begin, end = f"<!-- bench {name}: made by tools/reports/{tool}.py -->", f"<!-- /bench {name} -->"
    text = document.read_text()
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
    if not found:
        raise SystemExit(f"{document}: has no place for the table; expected the lines {begin} and {end}")
    document.write_text(text[: found.start()] + f"{begin}\n{content}\n{end}" + text[found.end() :])


def plot(groups: Groups, path: Path) -> None:
    """One bar for each target and recipe, stacked by component, and a line at real time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "voxport"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.5 * len(groups)), layout="constrained")
    for row, runs in enumerate(groups.values()):
        left = 0.0
        for number, label in enumerate([*layout_of(groups).parts, "outside the graphs"]):
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
    parser = argparse.ArgumentParser(description="Tables and plots from results of `bench --json`.")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN.json")
    document = "write the tables between the family's markers in this file (default: print them)"
    parser.add_argument("--document", type=Path, metavar="FILE.md", help=document)
    short = "write one short table for all families between the markers `summary` in this file"
    parser.add_argument("--summary", type=Path, metavar="FILE.md", help=short)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the bars of one family")
    arguments = parser.parse_args()
    families = read(arguments.runs)
    if arguments.summary:
        put(arguments.summary, "summary", summary(families))
        return
    if len(families) > 1:
        raise SystemExit(f"runs of {' and '.join(sorted(families))}: expected runs of one family")
    family, groups = next(iter(families.items()))
    if arguments.document:
        put(arguments.document, family, table(groups))
    else:
        print(table(groups))
    if arguments.plot:
        plot(groups, arguments.plot)


if __name__ == "__main__":
    main()
