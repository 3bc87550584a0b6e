"""One page about a verified bundle, without anything from the network: verdict, charts, sound, machine."""

import base64
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2
import numpy as np
import soundfile

from voxport.bundle.files import write_whole
from voxport.bundle.manifest import Bundle
from voxport.export.report import charts
from voxport.export.verify.comparison import Comparison, FreeRun, least_margin
from voxport.export.verify.report import VerificationResult, component_rows, failures, verdict
from voxport.runtime.machine import describe_machine


@dataclass(frozen=True)
class ShownRun:
    """What the page shows of a run: its tokens, or a spectrogram and a player of its samples."""

    engine: str
    tokens: list[int] | None = None
    seconds: float = 0.0
    svg: str = ""
    wav: str = ""


def write_page(
    path: Path, bundle: Bundle, result: VerificationResult, layer_errors: Mapping[str, Mapping[str, float]]
) -> None:
    """Writes the page. `layer_errors` are |w - q| / |w| by graph and module path."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text("utf-8"))
    job, comparisons = bundle.job, [row for row in result.rows if isinstance(row, Comparison)]
    page = template.render(
        title=f"{job.source.name}, {job.target}, {job.request.quant}",
        job=job,
        size=bundle.size / 1e6,
        passed=result.passed,
        verdict=verdict(result).splitlines(),
        failures=failures(result),
        components=component_rows(comparisons),
        charts=list(_charts(bundle, comparisons, layer_errors)),
        runs=[_run(run, int(str(job.constants["sample_rate"]))) for run in _compared_runs(result.free_runs)],
        reports=result.reports,
        machine=describe_machine(None, "torch") | job.tools,
        results=json.loads(result.report()),
    )
    write_whole(path, page.encode())


def _charts(
    bundle: Bundle, comparisons: list[Comparison], layer_errors: Mapping[str, Mapping[str, float]]
) -> Iterable[dict[str, str]]:
    outputs = {(row.component, row.output): row for row in comparisons}
    nearest = [
        least_margin(row for row in comparisons if (row.component, row.output) == output)
        for output in outputs
    ]
    if nearest:
        yield _chart(
            "Lowering error",
            "How far the artifact is from eager PyTorch with the same integers: of each output the "
            "comparison that is nearest to its bar.",
            charts.errors(nearest),
        )
    long_runs = [
        row for row in comparisons if len(row.calls) > 8 and "steps" in row.name and row.output != "states"
    ]
    if long_runs:
        yield _chart(
            "Drift",
            "The error of each step after a prefill. It must not grow. With integer activations, a value "
            "near a tie may round to the other side, which moves one call beyond the bar.",
            charts.drift(long_runs),
        )
    if any(layer_errors.values()):
        recipes = {name: recipe.name for name, recipe in bundle.job.recipes.items()}
        yield _chart(
            "Weight error",
            "The distance of each quantised weight from its value in the checkpoint, relative to its norm.",
            charts.weight_errors(layer_errors, recipes),
        )
    yield _chart("Size", "The files of each graph.", charts.sizes(_graph_sizes(bundle)))


def _chart(title: str, text: str, svg: str) -> dict[str, str]:
    return {"title": title, "text": text, "svg": svg}


def _graph_sizes(bundle: Bundle) -> dict[str, float]:
    """Megabytes by graph: files whose name begins with that of the graph."""
    sizes = dict.fromkeys(bundle.job.recipes, 0.0)
    for name, entry in bundle.manifest.files.items():
        owner = name.partition(".")[0]
        if owner in sizes:
            sizes[owner] += entry.size / 1e6
    return sizes


def _compared_runs(runs: Iterable[FreeRun]) -> list[FreeRun]:
    """Of the runs in several modes, those of the first mode, and full precision."""
    return list({run.engine: run for run in reversed(list(runs))}.values())[::-1]


def _run(run: FreeRun, rate: int) -> ShownRun:
    """Samples are at `rate` Hz."""
    if run.values.dtype.kind == "i":
        return ShownRun(run.engine, tokens=run.values.tolist())
    content = io.BytesIO()
    soundfile.write(content, np.clip(run.values, -1, 1), rate, format="WAV", subtype="PCM_16")
    return ShownRun(
        run.engine,
        seconds=len(run.values) / rate,
        svg=charts.spectrogram(run.values, rate, run.engine),
        wav=base64.b64encode(content.getvalue()).decode(),
    )
