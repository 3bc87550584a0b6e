"""Verifies a bundle: builds the reference engines from the checkpoint and runs the checks."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bundle.errors import ExportError, VoxportError
from bundle.manifest import Bundle
from export.memory import free_memory
from export.model import Model
from export.resolve import Resolved
from export.targets.base import Graph, Target
from export.verify.batching import check_batches
from export.verify.comparison import FLOAT16_BAR, FLOAT_BAR, Check, Result, distance_at
from export.verify.component_checks import check_components, check_last_positions
from export.verify.context import SAMPLE, SMOKE, WHOLE, Bars, ComparedEngines, Context
from export.verify.eager import EagerEngine, perturbed
from export.verify.recurrence import check_long_runs, check_replay
from export.verify.report import VerificationResult
from export.verify.streaming import check_streaming
from export.verify.teacher_forcing import check_codes, check_free_run
from quantize.modules import QuantizedModule
from runtime.engines import open_engine
from runtime.engines.base import EngineOptions
from runtime.families import open_family, read_constants

DEFAULT_STEPS, OTHER_STEPS = 1000, 200  # of the long run: in the first precision, and in the others
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifyOptions:
    """How a bundle is verified.

    `steps` is the number of decode steps of the long run in the first precision. `precisions` are those in
    which the artifact runs (default: those of the target; the first of them for large models).
    `compute_units` are the processors that Core ML uses where it runs natively.
    """

    steps: int = DEFAULT_STEPS
    precisions: tuple[str | None, ...] | None = None
    compute_units: str | None = None


DEFAULT = VerifyOptions()


def verify(
    bundle: Bundle,
    resolved: Resolved,
    target: Target,
    options: VerifyOptions = DEFAULT,
    model: Model | None = None,
) -> VerificationResult:
    """Runs every check that the target allows. A failed check is part of the result and raises nothing.

    `model` is that of the export, if it still has its weights.
    """
    model = model or Model(resolved, target.layout, bundle.job.compute_precision)
    results: list[Result] = []
    for graph in model.graphs():
        results += _check_structure(graph, bundle, target)
        model.pack(graph.name)
        free_memory()
    precisions = (
        options.precisions or target.verification_precisions[: 1 if resolved.source.is_large else None]
    )
    for index, precision in enumerate(precisions):
        units = options.compute_units if precision is None else None
        engine_options = EngineOptions(compute_precision=precision, compute_units=units)
        steps = options.steps if index == 0 else min(options.steps, OTHER_STEPS)
        suffix = f", {precision}" if precision else ""
        found = _run_checks(
            _open_context(bundle, resolved, target, model, engine_options), bundle, steps, suffix
        )
        results += [result.suffixed(suffix) for result in found]
    return VerificationResult.of(results)


def _check_structure(graph: Graph, bundle: Bundle, target: Target) -> list[Check]:
    """Checks a saved graph without running it, where the target can."""
    try:
        detail = target.check(graph, bundle.folder)
    except ExportError as error:
        return [Check(graph.name, False, str(error))]
    return [Check(graph.name, True, detail)] if detail else []


def _open_context(
    bundle: Bundle, resolved: Resolved, target: Target, model: Model, options: EngineOptions
) -> Context:
    """The engines to compare in one precision, with their bars."""
    job, layout, components = bundle.job, target.layout, model.components
    graphs = list(model.graphs())
    is_float16 = target.runs_in_float16(options.compute_precision)
    dtype = torch.float16 if is_float16 else torch.float32
    reference = Model(resolved.in_full_precision(), layout)
    is_large = resolved.source.is_large
    is_rounded = any(model.quantized.values()) or job.compute_precision == "float16"
    has_full = not is_large and is_rounded
    return Context(
        {component.name: component for component in components},
        ComparedEngines(
            artifact=open_engine(bundle, options),
            eager=EagerEngine(components, model.module, layout, target.linear_kernel),
            perturbed=EagerEngine(components, model.module, layout, perturbed(target.linear_kernel, dtype)),
            full=EagerEngine(components, reference.module, layout) if has_full else None,
        ),
        resolved.source.family.verification,
        Bars(
            lowering=FLOAT16_BAR if is_float16 else FLOAT_BAR,
            quantisation=_quantisation_bars(graphs),
            integer_graphs=_integer_graphs(graphs, target),
        ),
        WHOLE if not is_large else SMOKE if target.is_slow else SAMPLE,
        {entry.name: entry.max_batch for entry in bundle.components},
    )


def _integer_graphs(graphs: list[Graph], target: Target) -> frozenset[str]:
    """Graphs with products of integer activations."""
    return frozenset(
        graph.name
        for graph in graphs
        for part in _quantized_modules(graph)
        if not part.is_table and part.scheme.integer_activations(target.has_integer_kernels)
    )


def _quantisation_bars(graphs: list[Graph]) -> dict[str, float]:
    """The largest distance of each graph from full precision, by its coarsest scheme."""
    limits = {
        graph.name: [part.scheme.min_correlation for part in _quantized_modules(graph)] for graph in graphs
    }
    return {graph: distance_at(min(found)) for graph, found in limits.items() if found}


def _quantized_modules(graph: Graph) -> list[QuantizedModule]:
    return [part for part in graph.module.modules() if isinstance(part, QuantizedModule)]


def _run_checks(context: Context, bundle: Bundle, steps: int, suffix: str) -> Iterable[Result]:
    """Runs every check in one precision, which `suffix` names."""
    workload, constants = open_family(bundle.job.family).verification, read_constants(bundle.job)
    extent = context.extent
    checks: dict[str, Iterable[Result]] = {
        "components": check_components(context),
        "long run": check_long_runs(context, min(steps, extent.steps)),
        "last positions": check_last_positions(context),
        "replay": check_replay(context),
        "batches": check_batches(context),
        "streaming": check_streaming(context),
        "codes": check_codes(context, workload, constants),
        "free run": check_free_run(context, workload, constants),
    }
    if not extent.replay_steps:
        del checks["replay"]
    if not extent.free_run:
        del checks["free run"]
    if extent is not WHOLE:
        detail = f"a model of billions of weights: {extent}; not compared with full precision"
        log.info("  checking a sample of %s", detail)
        yield Check("sample", True, detail)
    for name, check in checks.items():
        log.info("  checking%s: %s", suffix.replace(",", " in", 1), name)
        yield from guarded(check, name)


def guarded(check: Iterable[Result], name: str) -> Iterable[Result]:
    """Turns an error of the engine, or arrays of unexpected shapes, into a failed check."""
    try:
        yield from check
    except (VoxportError, ArithmeticError, LookupError, ValueError) as error:
        yield Check(name, False, f"{type(error).__name__}: {error}")
