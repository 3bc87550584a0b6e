"""Verification of a bundle: build the references from the checkpoint, run the checks, report, decide."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from bundle.bundle import Bundle
from bundle.errors import ExportError
from bundle.manifest import ExportRequest
from export.memory import free_memory
from export.model import LazyReference, Model
from export.source import Source
from export.targets.base import Graph, Target
from export.verify.checks import at_once, each_component, guarded, long_run, replay, streaming
from export.verify.comparison import FLOAT_BAR, HALF_BAR, Comparison, Fact, distance_at
from export.verify.context import SAMPLE, SKETCH, WHOLE, Context
from export.verify.eager import EagerEngine, reordered
from export.verify.teacher_forcing import Reports, agreement, end_to_end
from quantize.module import QuantizedModule
from runtime.engines import open_engine
from runtime.engines.base import EngineOptions
from runtime.families import open_family, read_constants

DEFAULT_STEPS, OTHER_STEPS = 1000, 200
log = logging.getLogger(__name__)


def verify(
    bundle: Bundle,
    source: Source,
    lowering: Target,
    steps: int = DEFAULT_STEPS,
    model: Model | None = None,
    precisions: tuple[str | None, ...] | None = None,
    compute_units: str | None = None,
) -> dict[str, Any]:
    """Runs every check that the target allows. The result says `status`, `rows`, `reports`; nothing is raised for a miss.

    `precisions` (by default the target's, of a large model the first) say in what the artifact is run: the long run is shorter in all but the first.
    `compute_units` are for Core ML itself.
    """
    model = model or Model(source, bundle.job.request, lowering.layout, bundle.job.compute_precision)
    results: list[Comparison | Fact] = []
    for graph in model.graphs():
        results += _structure(graph, bundle, lowering)
        model.pack(graph.name)
        free_memory()
    reports: Reports = {}
    for index, precision in enumerate(
        precisions or lowering.verification_precisions[: 1 if source.is_large else None]
    ):
        options = EngineOptions(
            compute_precision=precision, compute_units=compute_units if precision is None else None
        )
        found = _run(
            bundle, source, lowering, model, options, steps if index == 0 else min(steps, OTHER_STEPS)
        )
        results += [
            replace(result, check=f"{result.check}, {precision}") if precision else result
            for result in found[0]
        ]
        reports |= {
            f"{name}, {precision}" if precision else name: values for name, values in found[1].items()
        }
    passed = all(result.passed for result in results)
    return {
        "status": "passed" if passed else "failed",
        "rows": [result.row() for result in results],
        "reports": reports,
    }


def _structure(graph: Graph, bundle: Bundle, lowering: Target) -> list[Fact]:
    try:
        right = lowering.check(graph, bundle.folder)
    except ExportError as error:
        return [Fact(graph.name, False, str(error))]
    return [Fact(graph.name, True, right)] if right else []


def _run(
    bundle: Bundle,
    source: Source,
    lowering: Target,
    model: Model,
    options: EngineOptions,
    steps: int,
) -> tuple[list[Comparison | Fact], Reports]:
    """Every check in one precision."""
    components, precision = model.components, options.compute_precision
    half = lowering.runs_in_float16(precision)
    job, layout = bundle.job, lowering.layout
    plain = LazyReference(
        source, ExportRequest(options=job.request.options, cache_length=job.cache_length), layout
    )
    extent = WHOLE if plain.holds_all else SKETCH if lowering.is_slow else SAMPLE
    rounded = plain.holds_all and (any(model.quantized.values()) or job.compute_precision == "float16")
    engine = open_engine(bundle, options)
    context = Context(
        components,
        artifact=engine.stream,
        eager=EagerEngine(components, model.module, layout, lowering.linear_kernel).stream,
        reordered=EagerEngine(
            components,
            model.module,
            layout,
            reordered(lowering.linear_kernel, torch.float16 if half else torch.float32),
        ).stream,
        full=EagerEngine(components, plain, layout).stream if rounded else None,
        layout=layout,
        integer_graphs={graph.name for graph in model.graphs() if _rounds_activations(graph, lowering)},
        bars=_quantisation_bars(model),
        float_bar=HALF_BAR if half else FLOAT_BAR,
        extent=extent,
        batched=engine.batched,
        max_batch={entry.name: entry.max_batch for entry in bundle.components},
        chunked=source.family.chunked,
    )
    family, constants = open_family(source.family.name), read_constants(bundle.job)
    reports: Reports = {}
    checks: dict[str, Iterable[Comparison | Fact]] = {
        "components": each_component(context),
        "long run": long_run(context, min(steps, extent.steps)),
        "replay": replay(context),
        "at once": at_once(context),
        "streaming": streaming(context),
        "codes": agreement(context, family, constants, reports),
        "free run": end_to_end(context, family, constants, reports, plain.holds_all),
    }
    if not extent.replayed:
        del checks["replay"]
    if not extent.freely:
        del checks["free run"]
    results: list[Comparison | Fact] = []
    if extent is not WHOLE:
        what = f"a model of billions of weights: {extent}; not compared with full precision"
        log.info("  checking a sample of %s", what)
        results.append(Fact("a sample", True, what))
    for name, check in checks.items():
        log.info("  checking%s: %s", f" in {precision}" if precision else "", name)
        results += guarded(check, name)
    return results, reports


def _rounds_activations(graph: Graph, lowering: Target) -> bool:
    linears = (part for part in _quantized_modules(graph) if not part.is_table)
    return any(linear.scheme.integer_activations(lowering.has_integer_kernels) for linear in linears)


def _quantisation_bars(model: Model) -> dict[str, float]:
    """The largest distance from full precision of each graph, by the scheme with the lowest correlation limit."""
    limits = {
        graph.name: [part.scheme.min_correlation for part in _quantized_modules(graph)]
        for graph in model.graphs()
    }
    return {graph: distance_at(min(found)) for graph, found in limits.items() if found}


def _quantized_modules(graph: Graph) -> list[QuantizedModule]:
    return [part for part in graph.module.modules() if isinstance(part, QuantizedModule)]


def table(result: dict[str, Any]) -> str:
    """For a person: component, output, lowering error, quantisation error, bar, margin; then the facts."""
    lines = [
        f"{'component':<14} {'output':<16} {'check':<20} {'lowering':>9} {'bar':>7} {'worst':>9} {'beyond':>7} {'may be':>7}"
        f" {'distance':>9} {'bar':>7} {'margin':>8} {'quantisation':>13} {'bar':>7}"
    ]
    for row in result["rows"]:
        if "component" in row:
            margin = (
                "-"
                if row["margin"] is None
                else f"{row['margin']:.1f}x"
                if row["margin"] < 1000
                else ">1000x"
            )
            lines.append(
                f"{row['component']:<14} {row['output']:<16} {row['check']:<20} {_short(row['lowering_error']):>9} {_short(row['bar']):>7}"
                f" {_short(row['lowering_error_worst']):>9} {row['beyond']:>7.0%} {row['beyond_allowed']:>7.0%}"
                f" {_short(row['distance']):>9} {_short(row['distance_bar']):>7} {margin:>8}"
                f" {_short(row['quantisation_error']):>13} {_short(row['quantisation_bar']):>7} {'' if row['passed'] else 'FAILED'}".rstrip()
            )
    lines += [
        f"{'ok    ' if row['passed'] else 'FAILED'} {row['check']}: {row['seen']}"
        for row in result["rows"]
        if "component" not in row
    ]
    lines += [
        f"       {what}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items())
        for what, values in result["reports"].items()
    ]
    margins = [
        (row["margin"], f"{row['component']}.{row['output']}, {row['check']}")
        for row in result["rows"]
        if row.get("margin") is not None
    ]
    nearest = "; smallest margin {:.1f}x at {}".format(*min(margins)) if margins else ""
    lines.append(
        f"{result['status']}: {sum(row['passed'] for row in result['rows'])} of {len(result['rows'])} checks hold{nearest}"
    )
    return "\n".join(lines)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def failures(result: dict[str, Any]) -> list[str]:
    """One line per missed bar."""
    lines = []
    for row in result["rows"]:
        if row["passed"]:
            continue
        if "component" in row:
            found = f"error {_short(row['lowering_error'])}, bar {_short(row['bar'])}, worst {_short(row['lowering_error_worst'])}"
            if row["beyond"]:
                found += f", {row['beyond']:.0%} of the calls beyond it"
            if row["distance_bar"] is not None:
                found += f", distance {_short(row['distance'])}, bar {_short(row['distance_bar'])}"
            if row["quantisation_bar"] is not None:
                found += f"; quantisation error {_short(row['quantisation_error'])}, bar {_short(row['quantisation_bar'])}"
            lines.append(f"{row['component']}.{row['output']} ({row['check']}): {found}")
        else:
            lines.append(f"{row['check']}: {row['seen']}")
    return lines
