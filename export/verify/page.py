"""One page about a verified bundle, without anything from the network: verdict, charts, sound, machine."""

import base64
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import soundfile
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from voxport.bundle.files import write_whole
from voxport.bundle.manifest import Bundle
from voxport.export.verify.comparison import Comparison, FreeRun, least_margin
from voxport.export.verify.result import VerificationResult, component_rows, failures, verdict
from voxport.runtime.machine import describe_machine

WIDTH, HEIGHT, ROW = 4.2, 2.8, 0.26  # inches; on a phone of 390 pixels the text is then 10 pixels high
WINDOW = 512  # samples of a column of a spectrogram
SMALLEST, LARGEST = 1e-8, 10.0  # errors beyond are drawn here, also infinite ones
GOOD, BAD, BAR = "#1b7f5c", "#c0392b", "#444444"
STYLE: Any = {  # Any: the keys of matplotlib are literals
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "voxport",
    "axes.grid": True,
    "grid.alpha": 0.3,
}
LayerErrors = Mapping[str, Mapping[str, float]]  # |w - q| / |w| by graph and module path


@dataclass(frozen=True)
class Chart:
    title: str
    text: str
    svg: str


@dataclass(frozen=True)
class ShownRun:
    """What the page shows of a run: its tokens, or a spectrogram and a player of its samples."""

    engine: str
    tokens: list[int] | None = None
    seconds: float = 0.0
    svg: str = ""
    wav: str = ""


def write_page(path: Path, bundle: Bundle, result: VerificationResult, layer_errors: LayerErrors) -> None:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text("utf-8"))
    job = bundle.job
    recipes = {name: recipe.name for name, recipe in job.recipes.items()}
    page = template.render(
        title=f"{job.source.name}, {job.target}, {job.request.quant}",
        job=job,
        size=bundle.size / 1e6,
        passed=result.passed,
        verdict=verdict(result),
        failures=failures(result),
        components=component_rows(result.comparisons),
        charts=list(charts(result.comparisons, layer_errors, recipes)),
        runs=[_run(run, int(str(job.constants["sample_rate"]))) for run in _compared_runs(result.free_runs)],
        measurements=result.measurements,
        machine=describe_machine(None, "torch") | job.tools,
        results=json.loads(result.as_json()),
    )
    write_whole(path, page.encode())


def charts(comparisons: list[Comparison], layers: LayerErrors, recipes: Mapping[str, str]) -> Iterator[Chart]:
    """`layers` and `recipes` are by graph."""
    outputs = dict.fromkeys((row.component, row.output) for row in comparisons)
    nearest = [
        least_margin(row for row in comparisons if (row.component, row.output) == output)
        for output in outputs
    ]
    if nearest:
        yield Chart(
            "Lowering error",
            "How far the artifact is from eager PyTorch with the same integers: of each output the "
            "comparison that is nearest to its bar.",
            _svg(
                "Lowering error of each output against its bar",
                partial(_draw_errors, nearest),
                height=0.8 + ROW * len(nearest),
            ),
        )
    long_runs = [
        row for row in comparisons if len(row.calls) > 8 and "steps" in row.name and row.output != "states"
    ]
    if long_runs:
        yield Chart(
            "Drift",
            "The error of each step after a prefill. It must not grow. With integer activations, a value "
            "near a tie may round to the other side, which moves one call beyond the bar.",
            _svg("Lowering error of each decode step", partial(_draw_drift, long_runs)),
        )
    if any(layers.values()):
        yield Chart(
            "Weight error",
            "The distance of each quantised weight from its value in the checkpoint, relative to its norm.",
            _svg("Relative error of each quantised weight", partial(_draw_weight_errors, layers, recipes)),
        )


def _draw_errors(rows: Sequence[Comparison], axes: Axes) -> None:
    """A line for each output: its error, coloured by whether it passed, and its bar."""
    for place, row in enumerate(rows):
        axes.plot(_drawn(row.nearest.value), place, "o", color=GOOD if row.passed else BAD)
        axes.plot(row.nearest.bar, place, "|", color=BAR, markersize=12, markeredgewidth=2)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [f"{row.component}.{row.output}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("lowering error (dot) and its bar (line)")


def _draw_drift(rows: Sequence[Comparison], axes: Axes) -> None:
    """The largest error of each step of the long runs."""
    for row in rows:
        values = [_drawn(call.largest) for call in row.calls]
        axes.plot(values, ".", markersize=2.5, label=f"{row.component}, {row.name}")
    axes.axhline(rows[0].float_bar, color=BAR, linewidth=1, label="bar without ties")
    axes.set_yscale("log")
    axes.set_xlabel("decode step")
    axes.set_ylabel("lowering error")
    axes.legend(fontsize=8)


def _draw_weight_errors(layers: LayerErrors, recipes: Mapping[str, str], axes: Axes) -> None:
    """A dot for each quantised weight, in the order of the model, coloured by graph."""
    start = 0
    for graph, found in layers.items():
        places = range(start, start + len(found))
        if found:
            values = [100 * error for error in found.values()]
            axes.plot(places, values, ".", label=f"{graph}: {recipes[graph]}")
        start = places.stop
    axes.set_ylim(bottom=0)
    axes.set_xlabel("quantised weight, in the order of the model")
    axes.set_ylabel("weight error, %")
    axes.legend(fontsize=8)


def _draw_spectrogram(samples: np.ndarray, rate: int, axes: Axes) -> None:
    """Decibels over time and frequency."""
    padded = np.pad(samples, (0, max(0, WINDOW - len(samples)))) + 1e-6
    axes.specgram(padded, NFFT=WINDOW, Fs=rate, noverlap=WINDOW // 2, cmap="magma", vmin=-140, vmax=-40)
    axes.grid(False)
    axes.set_xlabel("seconds")
    axes.set_ylabel("Hz")


def _compared_runs(runs: Iterable[FreeRun]) -> list[FreeRun]:
    """The runs of the first of several modes, and the run of full precision."""
    return list({run.engine: run for run in reversed(list(runs))}.values())[::-1]


def _run(run: FreeRun, rate: int) -> ShownRun:
    """Samples are at `rate` Hz."""
    if run.values.dtype.kind == "i":
        return ShownRun(run.engine, tokens=run.values.tolist())
    content = io.BytesIO()
    soundfile.write(content, np.clip(run.values, -1, 1), rate, format="WAV", subtype="PCM_16")
    svg = _svg(f"Spectrogram: {run.engine}", partial(_draw_spectrogram, run.values, rate), height=2.2)
    wav = base64.b64encode(content.getvalue()).decode()
    return ShownRun(run.engine, seconds=len(run.values) / rate, svg=svg, wav=wav)


def _drawn(error: float) -> float:
    return min(max(error, SMALLEST), LARGEST)


def _svg(label: str, draw: Callable[[Axes], None], height: float = HEIGHT) -> str:
    """An `svg` element that fills the width of its parent."""
    text = io.StringIO()
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    head, _, rest = text.getvalue().partition("<svg ")[2].partition(">")
    view_box = head.partition('viewBox="')[2].partition('"')[0]
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {names} viewBox="{view_box}" role="img" aria-label="{label}">{rest}'
