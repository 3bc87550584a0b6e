"""Charts of the page as SVG: errors against their bars, drift, weights, sizes, spectrograms."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from voxport.export.verify.comparison import Comparison
from voxport.export.verify.report import error_and_bar

WIDTH = 4.2  # inches; on a phone of 390 pixels the text is then 10 pixels high
ROW = 0.26  # inches of a line of text
SMALLEST, LARGEST = 1e-8, 10.0  # errors beyond are drawn here, also infinite ones
GOOD, BAD, BAR, BLUE = "#1b7f5c", "#c0392b", "#444444", "#2b6cb0"
STYLE: Any = {  # Any: the keys of matplotlib are literals
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "voxport",
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def errors(rows: Sequence[Comparison]) -> str:
    """A line for each output: its error, coloured by whether it passed, and its bar."""
    labels = [f"{row.component}.{row.output}" for row in rows]
    with rc_context(STYLE):
        figure, axes = _figure(len(rows))
        for place, row in enumerate(rows):
            error, bar = error_and_bar(row)
            axes.plot(_drawn(error), place, "o", color=GOOD if row.passed else BAD)
            axes.plot(bar, place, "|", color=BAR, markersize=12, markeredgewidth=2)
        axes.set_xscale("log")
        _label_rows(axes, labels)
        axes.set_xlabel("lowering error (dot) and its bar (line)")
        return _svg(figure, "Lowering error of each output against its bar")


def drift(rows: Sequence[Comparison]) -> str:
    """The largest error of each step of the long runs."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        axes = figure.subplots()
        for row in rows:
            values = [_drawn(call.largest) for call in row.calls]
            axes.plot(values, ".", markersize=2.5, label=f"{row.component}, {row.name}")
        axes.axhline(rows[0].float_bar, color=BAR, linewidth=1, label="bar without ties")
        axes.set_yscale("log")
        axes.set_xlabel("decode step")
        axes.set_ylabel("lowering error")
        axes.legend(fontsize=8)
        return _svg(figure, "Lowering error of each decode step")


def weight_errors(layers: Mapping[str, Mapping[str, float]], recipes: Mapping[str, str]) -> str:
    """A dot for each quantised weight, in the order of the model, coloured by graph."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        axes, start = figure.subplots(), 0
        for graph, found in layers.items():
            if found:
                values = [100 * error for error in found.values()]
                places = range(start, start + len(values))
                axes.plot(places, values, ".", label=f"{graph}: {recipes[graph]}")
                start += len(values)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("quantised weight, in the order of the model")
        axes.set_ylabel("weight error, %")
        axes.legend(fontsize=8)
        return _svg(figure, "Relative error of each quantised weight")


def sizes(megabytes: Mapping[str, float]) -> str:
    """Megabytes of each file."""
    with rc_context(STYLE):
        figure, axes = _figure(len(megabytes))
        axes.barh(range(len(megabytes)), list(megabytes.values()), color=BLUE)
        _label_rows(axes, list(megabytes))
        axes.set_xlabel("MB")
        return _svg(figure, "Size of each graph")


def spectrogram(samples: np.ndarray, rate: int, name: str) -> str:
    """Decibels over time and frequency."""
    with rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
        axes = figure.subplots()
        window = 512
        padded = np.pad(samples, (0, max(0, window - len(samples)))) + 1e-6
        axes.specgram(padded, NFFT=window, Fs=rate, noverlap=window // 2, cmap="magma", vmin=-140, vmax=-40)
        axes.set_xlabel("seconds")
        axes.set_ylabel("Hz")
        return _svg(figure, f"Spectrogram: {name}")


def _drawn(error: float) -> float:
    return min(max(error, SMALLEST), LARGEST)


def _figure(rows: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 0.8 + ROW * rows), layout="constrained")
    return figure, figure.subplots()


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()


def _svg(figure: Figure, label: str) -> str:
    """An `svg` element that fills the width of its parent."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    element = text.getvalue().partition("<svg ")[2]
    head, _, rest = element.partition(">")
    view_box = head.partition('viewBox="')[2].partition('"')[0]
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {names} viewBox="{view_box}" role="img" aria-label="{label}">{rest}'
