"""Verification of a bundle: build the references from the checkpoint, run the checks, report, decide."""

from __future__ import annotations

from typing import Any

from export.agreement import Reports, agreement, end_to_end
from export.checks import Context, each_component, guarded, long_run, replay, streaming
from export.compare import Comparison, Fact, distance_at
from export.eager import EagerEngine, reordered
from export.lowering import Lowering
from export.source import Model, OneGraph, Plan, Source
from model.component import Component
from quantize.linear import QuantizedEmbedding, QuantizedLinear, float_activations
from quantize.recipe import LEAST_CORRELATION
from runtime.bundle import Bundle
from runtime.engines import open_engine
from runtime.voxtral_tts import read_constants

DEFAULT_STEPS = 1000


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
        integer_graphs={component.graph for component in components if lowering.product is not float_activations and _bits(component, QuantizedLinear)},
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
        ("free run", end_to_end(context, constants, reports) if plain.holds_all else ()),
    ):
        results += guarded(checks, name)
    passed = all(result.passed for result in results)
    return {"status": "passed" if passed else "failed", "rows": [result.row() for result in results], "reports": reports}


def _bits(component: Component, *kinds: type[QuantizedLinear] | type[QuantizedEmbedding]) -> list[int]:
    """Of every weight that is held in integers."""
    return [part.scheme.bits for kind in kinds for part in component.module.modules() if isinstance(part, kind)]


def _quantisation_bars(components: list[Component]) -> dict[str, float]:
    """Per graph, by its coarsest weight."""
    bits = {component.graph: _bits(component, QuantizedLinear, QuantizedEmbedding) for component in components}
    return {graph: distance_at(LEAST_CORRELATION[min(found)]) for graph, found in bits.items() if found}


def table(result: dict[str, Any]) -> str:
    """For a person: component, output, lowering error, quantisation error, bar, margin; then the facts."""
    lines = [f"{'component':<14} {'output':<16} {'check':<20} {'lowering':>9} {'bar':>8} {'worst':>9} {'bar':>8} {'margin':>8} {'quantisation':>12} {'bar':>8}"]
    for row in result["rows"]:
        if "component" in row:
            quantisation, bar = (f"{row[key]:.1e}" if row[key] is not None else "-" for key in ("quantisation_error", "quantisation_bar"))
            margin = f"{row['margin']:.1f}x" if row["margin"] < 1000 else ">1000x"
            lines.append(
                f"{row['component']:<14} {row['output']:<16} {row['check']:<20} {row['lowering_error']:>9.1e} {row['bar']:>8.0e}"
                f" {row['lowering_error_worst']:>9.1e} {row['bar_worst']:>8.0e} {margin:>8} {quantisation:>12} {bar:>8}"
                f" {'' if row['passed'] else 'FAILED'}".rstrip()
            )
    lines += [f"{'ok    ' if row['passed'] else 'FAILED'} {row['check']}: {row['seen']}" for row in result["rows"] if "component" not in row]
    lines += [f"       {what}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items()) for what, values in result["reports"].items()]
    return "\n".join(lines)


def failures(result: dict[str, Any]) -> list[str]:
    """One line per missed bar."""
    lines = []
    for row in result["rows"]:
        if row["passed"]:
            continue
        if "component" in row:
            found = f"error {row['lowering_error']:.1e}, worst {row['lowering_error_worst']:.1e}, bars {row['bar']:.0e} and {row['bar_worst']:.0e}"
            if row["quantisation_bar"] is not None and row["quantisation_error"] > row["quantisation_bar"]:
                found += f"; quantisation error {row['quantisation_error']:.1e}, bar {row['quantisation_bar']:.1e}"
            lines.append(f"{row['component']}.{row['output']} ({row['check']}): {found}")
        else:
            lines.append(f"{row['check']}: {row['seen']}")
    return lines
