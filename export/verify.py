"""Verification of a bundle: build the references from the checkpoint, run the checks, report, decide."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any

from export.agreement import agreement
from export.checks import Context, each_component, guarded, long_run, replay, streaming
from export.compare import Comparison, Fact
from export.eager import EagerEngine, use_arithmetic
from export.lowering import Lowering
from export.source import Model, OneGraph, Plan, Source
from model.layers.attention import ReferenceAttention
from quantize.linear import QuantizedLinear, float_activations
from runtime.bundle import Bundle
from runtime.engines import open_engine
from runtime.voxtral_tts import parse_constants

DEFAULT_STEPS = 1000
ACTIVATION_ERROR = 1 / 127  # relative error of one product from 8-bit activations: half a step is absmax / 254, doubled
SPREAD = 3.0  # errors of products add in quadrature; three times that is the bar of a recipe


def verify(bundle: Bundle, source: Source, plan: Plan, lowering: Lowering, steps: int = DEFAULT_STEPS, model: Model | None = None) -> dict[str, Any]:
    """Runs every check that the target allows. The result says `status`, `rows`, `agreement`; nothing is raised for a miss."""
    recipes = source.recipes(plan)
    model = model or Model(source, plan, recipes, lowering.layout)
    components = model.all_components()
    attention = ReferenceAttention(lowering.layout)
    cache_length = plan.cache_length
    use_arithmetic(components, lowering.product, attention)
    eager = EagerEngine(components, cache_length)
    full = None
    if any(model.quantized.values()):
        plain = Plan("none", switches=plan.switches, cache_length=cache_length)
        full = EagerEngine(components, cache_length, OneGraph(source, plain, lowering.layout))
    integer = {component.graph for component in components if lowering.product is not float_activations and _holds_integers(component.module)}
    artifact = open_engine(bundle)
    context = Context(components, artifact.stream, eager.stream, full.stream if full else None, integer, _quantisation_bars(model))
    constants = parse_constants(bundle.manifest.constants)
    results: list[Comparison | Fact] = []
    for name, checks in (
        ("components", each_component(context)),
        ("long run", long_run(context, steps)),
        ("replay", replay(context)),
        ("streaming", streaming(context)),
    ):
        results += guarded(checks, name)
    report: dict[str, Any] = {}

    def codes() -> Iterable[Fact]:
        facts, found = agreement(context, constants, plan.switches.get("first_frame", "audio_token"))
        report.update(found)
        yield from facts

    results += guarded(codes(), "codes, teacher-forced")
    passed = all(result.passed for result in results)
    return {"status": "passed" if passed else "failed", "rows": [result.row() for result in results], "agreement": report}


def _holds_integers(module) -> bool:
    return any(isinstance(part, QuantizedLinear) for part in module.modules())


def _quantisation_bars(model: Model) -> dict[str, float]:
    """Per graph: n products, each off by the weight error and the activation error, independent of each other."""
    bars = {}
    for graph, paths in model.quantized.items():
        if paths:
            bars[graph] = SPREAD * sqrt(len(paths)) * (model.reports[graph]["weight_error"] + ACTIVATION_ERROR)
    return bars


def table(result: dict[str, Any]) -> str:
    """For a person: component, output, lowering error, quantisation error, bar, margin; then the facts."""
    lines = [f"{'component':<14} {'output':<16} {'check':<20} {'lowering':>9} {'worst':>9} {'bar':>8} {'margin':>8} {'quantisation':>12}"]
    for row in result["rows"]:
        if "component" in row:
            quantisation = f"{row['quantisation_error']:.1e}" if row["quantisation_error"] is not None else "-"
            lines.append(
                f"{row['component']:<14} {row['output']:<16} {row['check']:<20} {row['lowering_error']:>9.1e} {row['lowering_error_worst']:>9.1e}"
                f" {row['bar']:>8.0e} {row['margin']:>7.0f}x {quantisation:>12} {'' if row['passed'] else 'FAILED'}".rstrip()
            )
    lines += [f"{'ok    ' if row['passed'] else 'FAILED'} {row['check']}: {row['seen']}" for row in result["rows"] if "component" not in row]
    lines += [
        f"{what} agreement: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items())
        for what, values in result["agreement"].items()
        if isinstance(values, dict)
    ]
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
