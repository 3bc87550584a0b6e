"""Plots of evaluations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from bundle.files import write_whole
from export.evaluation.result import LINES

matplotlib.use("Agg")
PLOTTED = "codes_equal", "other_codes_equal", "log_mel_db", "wer", "text_equal"


def plot_sweep(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A bar for each part in each figure that the rows have."""
    from io import BytesIO

    from matplotlib.figure import Figure

    keys = [key for key in PLOTTED if key in rows[0]]
    figure = Figure(figsize=(4 * len(keys), 1 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    names = [f"{row['part']} ({row['weights'] / 1e3:.0f} k)" for row in rows]
    for axis, key in zip(axes, keys, strict=True):
        name, factor, unit = LINES[key]
        axis.barh(names, [row[key] * factor for row in rows], color="#4477aa")
        axis.set_xlabel(f"{name}, {unit}", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(axis="x", linewidth=0.4)
    axes[0].invert_yaxis()
    file = BytesIO()
    figure.savefig(
        file, format=path.suffix[1:] or "svg", metadata={"Date": None} if path.suffix == ".svg" else None
    )
    write_whole(path, file.getvalue())
