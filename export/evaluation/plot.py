"""Plots of evaluations."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from voxport.bundle.errors import UsageError
from voxport.bundle.files import write_whole
from voxport.export.evaluation.result import FIGURES, Row
from voxport.export.report.charts import STYLE

PLOTTED = "codes_equal", "other_codes_equal", "log_mel_db", "wer", "text_equal"
FORMATS = ".svg", ".png", ".pdf"


def check_plot(path: Path) -> None:
    """Raises UsageError on a file of another kind."""
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: expected one of {', '.join(FORMATS)}", field="plot")


def plot_sweep(path: Path, rows: Sequence[Row]) -> None:
    """Writes one chart for each figure, with a bar for each part. Raises OutputError."""
    keys = [key for key in PLOTTED if any(key in row for row in rows)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4 * len(keys), 1 + 0.28 * len(rows)), layout="constrained")
        axes = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
        names = [f"{row['part']} ({row['weights'] / 1e3:.0f} k)" for row in rows]
        for axis, key in zip(axes, keys, strict=True):
            name, factor, unit = FIGURES[key]
            axis.barh(names, [row.get(key, 0) * factor for row in rows])
            axis.set_xlabel(f"{name}, {unit}", fontsize=8)
            axis.tick_params(labelsize=8)
        axes[0].invert_yaxis()
        file = BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(file, format=path.suffix[1:], metadata=metadata)
    write_whole(path, file.getvalue())
