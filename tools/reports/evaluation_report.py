"""Writes the tables and the plot of docs/evaluation.md from `voxport evaluate -o`.

evaluation_report.py RESULT.json... --document docs/evaluation.md --plot docs/bench/evaluation.svg
evaluation_report.py NAME-DECIBELS.json... --noise-document docs/evaluation.md

The second command is for recordings with noise. Decibels are those of the noise below the speech.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bench_report import put

from voxport.bundle.json_types import Json
from voxport.export.evaluation.result import FIGURES

MARKS = {"onnx": "o", "executorch": "s", "coreml": "^"}
Found = Json


def table(found: Sequence[Found]) -> str:
    """A row for each bundle, and a column for each figure that any of them has."""
    keys = [key for key in FIGURES if any(key in each["figures"] for each in found)]
    names = ["bundle", "MB", "readings", *(FIGURES[key][0] for key in keys)]
    rows = [names, ["---"] * len(names)]
    for each in sorted(found, key=lambda each: (list(MARKS).index(each["target"]), each["recipe"])):
        cells = [_cell(each["figures"], key) for key in keys]
        readings = len(each["rows"]) // len({row["name"] for row in each["rows"]})
        rows.append([each["bundle"], f"{each['bytes'] / 1e6:.1f}", str(readings), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(figures: dict[str, float], key: str) -> str:
    _, factor, unit = FIGURES[key]
    return (
        f"{figures[key] * factor:.{2 if unit in ('', 'dB') else 1}f} {unit}".strip() if key in figures else ""
    )


def noise_table(paths: Sequence[Path]) -> str:
    """A row for each level of noise, and a column for each recipe."""
    found = {}
    for path in paths:
        result = json.loads(path.read_text())
        figures, count = result["figures"], len(result["rows"])
        cell = f"{figures['wer']:.1%}".replace("%", " %")
        cell += f", {figures['live_equal'] * count:.0f} of {count}"
        found[int(path.stem.rpartition("-")[2]), result["recipe"]] = cell
    levels, recipes = sorted({level for level, _ in found}, reverse=True), ("none", "w8", "w4")
    rows = [["noise below the speech", *(f"`{recipe}`" for recipe in recipes)], ["---"] * (1 + len(recipes))]
    rows += [[f"{level} dB", *(found[level, recipe] for recipe in recipes)] for level in levels]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plot(found: Sequence[Found], path: Path) -> None:
    """Size against word error rate: a point for each bundle, a plot for each family and recogniser."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "voxport"  # the same figures give the same file
    groups = sorted({(each["family"], each["recogniser"]) for each in found})
    figure = Figure(figsize=(5 * len(groups), 3.5), layout="constrained")
    for axis, group in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        for each in found:
            if (each["family"], each["recogniser"]) == group:
                size, rate = each["bytes"] / 1e6, 100 * each["figures"]["wer"]
                axis.plot(size, rate, MARKS[each["target"]], label=each["target"])
                axis.annotate(each["recipe"], (size, rate), fontsize=7)
        labels = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axis.legend(labels.values(), labels.keys(), fontsize=7)
        axis.set_title(f"{group[0]}, recogniser: {group[1]}", fontsize=9)
        axis.set_xlabel("size of the bundle, MB")
        axis.set_ylabel("word error rate, %")
        axis.set_ylim(bottom=0)
        axis.grid(linewidth=0.4)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    document = parser.add_mutually_exclusive_group(required=True)
    document.add_argument("--document", type=Path)
    document.add_argument("--noise-document", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if arguments.noise_document:
        put(arguments.noise_document, "noise", noise_table(arguments.results), "evaluation_report")
        return
    found = [json.loads(path.read_text()) for path in arguments.results]
    for family, recogniser in sorted({(each["family"], each["recogniser"]) for each in found}):
        some = [each for each in found if (each["family"], each["recogniser"]) == (family, recogniser)]
        put(arguments.document, f"{family} {recogniser}", table(some), "evaluation_report")
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
