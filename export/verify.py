"""Verification of a bundle: build the references from the checkpoint, run the checks, report, decide."""

from __future__ import annotations

import logging
from typing import Any

from export.agreement import Reports, agreement, end_to_end
from export.checks import Context, each_component, guarded, long_run, replay, streaming
from export.compare import Comparison, Fact, distance_at
from export.eager import EagerEngine, reordered
from export.lowering import Lowering
from export.source import Model, OneGraph, Plan, Source
from model.component import Component
from quantize.linear import QuantizedEmbedding, QuantizedLinear
from quantize.recipe import LEAST_CORRELATION
from runtime.bundle import Bundle
from runtime.engines import open_engine
from runtime.voxtral_tts import read_constants

DEFAULT_STEPS = 1000
log = logging.getLogger(__name__)


def verify(bundle: Bundle, source: Source, plan: Plan, lowering: Lowering, steps: int = DEFAULT_STEPS, model: Model | None = None) -> dict[str, Any]:
    """Runs every check that the target allows. The result says `status`, `rows`, `reports`; nothing is raised for a miss."""
    model = model or Model(source, plan, lowering.layout)
    components = model.all_components()
    length, layout = plan.cache_length, lowering.layout
    plain = OneGraph(source, Plan("none", switches=plan.switches, cache_length=length), layout)
    context = Context(
        components,
        artifact=open_engine(bundle).stream,
        eager=EagerEngine(components, length, layout, lowering.product).stream,
        reordered=EagerEngine(components, length, layout, reordered(lowering.product)).stream,
        full=EagerEngine(components, length, layout, find=plain).stream if any(model.quantized.values()) else None,
        layout=layout,
        integer_graphs={component.graph for component in components if _rounds_activations(component, lowering)},
        bars=_quantisation_bars(components),
    )
    constants = read_constants(bundle.manifest)
    reports: Reports = {}
    results: list[Comparison | Fact] = []
    for name, checks in (
        ("components", each_component(context)),
        ("long run", long_run(context, steps)),
        ("replay", replay(context)),
        ("streaming", streaming(context)),
        ("codes", agreement(context, constants, reports)),
        ("free run", end_to_end(context, constants, reports, plain.holds_all)),
    ):
        log.info("  checking: %s", name)
        results += guarded(checks, name)
    passed = all(result.passed for result in results)
    return {"status": "passed" if passed else "failed", "rows": [result.row() for result in results], "reports": reports}


def _rounds_activations(component: Component, lowering: Lowering) -> bool:
    linears = [part for part in component.module.modules() if isinstance(part, QuantizedLinear)]
    return any(lowering.integer_kernels or part.scheme.activations == "int8" for part in linears)


def _quantisation_bars(components: list[Component]) -> dict[str, float]:
    """Per graph, by its coarsest weight."""
    bits = {
        component.graph: [part.scheme.bits for part in component.module.modules() if isinstance(part, QuantizedLinear | QuantizedEmbedding)]
        for component in components
    }
    return {graph: distance_at(LEAST_CORRELATION[min(found)]) for graph, found in bits.items() if found}


def table(result: dict[str, Any]) -> str:
    """For a person: component, output, lowering error, quantisation error, bar, margin; then the facts."""
    lines = [
        f"{'component':<14} {'output':<16} {'check':<20} {'lowering':>9} {'bar':>7} {'worst':>9} {'beyond':>7} {'may be':>7}"
        f" {'distance':>9} {'bar':>7} {'margin':>8} {'quantisation':>13} {'bar':>7}"
    ]
    for row in result["rows"]:
        if "component" in row:
            margin = "-" if row["margin"] is None else f"{row['margin']:.1f}x" if row["margin"] < 1000 else ">1000x"
            lines.append(
                f"{row['component']:<14} {row['output']:<16} {row['check']:<20} {_short(row['lowering_error']):>9} {_short(row['bar']):>7}"
                f" {_short(row['lowering_error_worst']):>9} {row['beyond']:>7.0%} {row['beyond_allowed']:>7.0%}"
                f" {_short(row['distance']):>9} {_short(row['distance_bar']):>7} {margin:>8}"
                f" {_short(row['quantisation_error']):>13} {_short(row['quantisation_bar']):>7} {'' if row['passed'] else 'FAILED'}".rstrip()
            )
    lines += [f"{'ok    ' if row['passed'] else 'FAILED'} {row['check']}: {row['seen']}" for row in result["rows"] if "component" not in row]
    lines += [f"       {what}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items()) for what, values in result["reports"].items()]
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
            if row["distance_bar"] is not None:
                found += f", {row['beyond']:.0%} of the calls beyond, distance {_short(row['distance'])}, bar {_short(row['distance_bar'])}"
            if row["quantisation_bar"] is not None:
                found += f"; quantisation error {_short(row['quantisation_error'])}, bar {_short(row['quantisation_bar'])}"
            lines.append(f"{row['component']}.{row['output']} ({row['check']}): {found}")
        else:
            lines.append(f"{row['check']}: {row['seen']}")
    return lines
