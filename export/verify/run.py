"""Verifies a bundle: builds the reference engines from the checkpoint and runs the checks."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from voxport.bundle.errors import ExportError, VoxportError
from voxport.bundle.manifest import Bundle
from voxport.bundle.progress import advance
from voxport.export.memory import free_memory
from voxport.export.model import Export, Model
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Graph, Target
from voxport.export.verify.approximation import report_approximation
from voxport.export.verify.code_checks import check_codes
from voxport.export.verify.comparison import (
    FLOAT16_BAR,
    FLOAT_BAR,
    Check,
    Result,
    distance_at,
)
from voxport.export.verify.component_checks import (
    check_batches,
    check_components,
    check_last_positions,
    check_streaming,
)
from voxport.export.verify.context import (
    LONG_CODES,
    MAX_ROWS,
    SAMPLE,
    SMOKE,
    WHOLE,
    Bars,
    ComparedEngines,
    Context,
    Extent,
)
from voxport.export.verify.eager import EagerEngine, perturbed
from voxport.export.verify.long_codes import check_long_codes
from voxport.export.verify.manifest_check import check_weight_errors
from voxport.export.verify.modes import DEFAULTS, Mode, VerifyOptions, modes
from voxport.export.verify.report import VerificationResult
from voxport.export.verify.run_checks import check_free_run, check_long_runs, check_replay
from voxport.quantize.modules import QuantizedModule, float_activations
from voxport.runtime.engines import open_engine
from voxport.runtime.families import open_family, read_constants

COMPONENTS = "components"  # the check of single calls
CHECKS = 9  # of a mode


log = logging.getLogger(__name__)


def verify(
    bundle: Bundle, export: Export, options: VerifyOptions, checked: Sequence[Result] | None = None
) -> VerificationResult:
    """Runs every check that the target allows. A failed check is part of the result and raises nothing.

    `checked` are the results of `verify_graph` for every graph, if it ran.
    """
    resolved, target, model = export.resolved, export.target, export.model
    results = list(checked or ())
    if checked is None:
        for graph in resolved.recipes:
            results += verify_graph(bundle, export, graph, options)
            model.pack(graph)
            free_memory()
    results += check_weight_errors(bundle.manifest.weight_errors, model.weight_errors)
    for index, mode in enumerate(modes(resolved, target, options)):
        left_out = (COMPONENTS,) if index == 0 else ()  # `verify_graph` checked them
        # no name holds the engines of a mode, so they are freed before the next one opens its own
        results += _named(_run_checks(open_context(bundle, export, mode), bundle, mode, left_out), mode)
        free_memory()
    for approximation in resolved.source.family.verification.approximations:
        report = report_approximation(approximation, resolved, target, model, _extent(resolved).run_steps)
        results += guarded(report, approximation.option)
    return VerificationResult.of(results)


def verify_graph(
    bundle: Bundle, export: Export, graph: str, options: VerifyOptions = DEFAULTS
) -> list[Result]:
    """Reads one graph back, and checks single calls of its components in the mode with the tightest bars."""
    mode = modes(export.resolved, export.target, options)[0]
    found: list[Result] = [*_check_structure(export.model.graph(graph), bundle, export.target)]
    advance(0, f"checking {graph}")
    context = open_context(bundle, export, mode, graph)
    found += _named(guarded(check_components(context), f"components of {graph}"), mode)
    advance(1)
    return found


def _named(results: Iterable[Result], mode: "Mode") -> list[Result]:
    return [replace(result, name=f"{result.name}{mode.suffix}") for result in results]


def _check_structure(graph: Graph, bundle: Bundle, target: Target) -> list[Check]:
    try:
        detail = target.check(graph, bundle.folder)
    except ExportError as error:
        return [Check(graph.name, False, str(error))]
    return [Check(graph.name, True, detail)] if detail else []


def open_context(bundle: Bundle, export: Export, mode: Mode, graph: str | None = None) -> Context:
    """The engines to compare in one mode, with their bars: for all graphs, or for one."""
    resolved, target, model = export.resolved, export.target, export.model
    graphs = [model.graph(name) for name in ([graph] if graph else resolved.recipes)]
    layout = target.layout
    names = {entry.name for entry in bundle.components}
    components = tuple(component for component in model.components if component.name in names)
    checked = {component.name: component for part in graphs for component in part.components}
    is_float16 = target.runs_in_float16(mode.engine.compute_precision)
    bars = _bars(graphs, target, is_float16)
    reference = Model(resolved.in_full_precision(), layout)
    is_large = resolved.source.is_large
    holds_full = not is_large or mode.long_codes
    is_rounded = any(model.layer_errors.values()) or bundle.job.compute_precision == "float16"
    unrounded = EagerEngine(components, model.module, layout, float_activations)
    if mode.float_activations:
        artifact = target.open_with_float_activations(bundle, mode.engine)
        engines = ComparedEngines(artifact, unrounded, unrounded)
        bars = replace(bars, integer_graphs=frozenset())
    else:
        kernel, dtype = target.linear_kernel, torch.float16 if is_float16 else torch.float32
        counts_ties = not is_large and not mode.float_first
        other_sums = EagerEngine(components, model.module, layout, perturbed(kernel, dtype))
        engines = ComparedEngines(
            artifact=open_engine(bundle, mode.engine),
            eager=EagerEngine(components, model.module, layout, kernel),
            unrounded=unrounded,
            perturbed=other_sums if counts_ties else None,
            full=EagerEngine(components, reference.module, layout) if is_rounded and holds_full else None,
        )
    extent = _extent(resolved, target.is_slow(mode.engine.compute_precision))
    left_out = dict.fromkeys((*extent.left_out, *mode.left_out))
    if mode.long_codes:
        left_out.pop(LONG_CODES, None)
    return Context(
        checked,
        engines,
        resolved.source.family.verification.restricted_to(names),
        bars,
        replace(extent, left_out=tuple(left_out)),
        {entry.name: entry.max_batch for entry in bundle.components},
    )


def _extent(resolved: Resolved, is_slow: bool = False) -> Extent:
    return WHOLE if not resolved.source.is_large else SMOKE if is_slow else SAMPLE


def _bars(graphs: Iterable[Graph], target: Target, is_float16: bool) -> Bars:
    """Those of quantisation follow from the coarsest scheme of each graph."""
    schemes = {
        graph.name: [
            (part.scheme, part.is_table)
            for part in graph.module.modules()
            if isinstance(part, QuantizedModule)
        ]
        for graph in graphs
    }
    return Bars(
        lowering=FLOAT16_BAR if is_float16 else FLOAT_BAR,
        quantisation={
            graph: distance_at(min(scheme.min_correlation for scheme, _ in found))
            for graph, found in schemes.items()
            if found
        },
        integer_graphs=frozenset(
            graph
            for graph, found in schemes.items()
            for scheme, is_table in found
            if not is_table and scheme.integer_activations(target.has_integer_kernels)
        ),
    )


def count_steps(resolved: Resolved, target: Target, options: VerifyOptions) -> int:
    """The number of times that `verify` calls `advance(1)`: for each graph, and for each check of a mode."""
    return len(resolved.recipes) + CHECKS * len(modes(resolved, target, options))


def checks_of(context: Context, bundle: Bundle, mode: Mode) -> dict[str, Iterable[Result]]:
    """Every check by its name. Each runs when its results are read, and does not depend on the others."""
    workload, constants = open_family(bundle.job.family).verification, read_constants(bundle.job)
    return {
        COMPONENTS: check_components(context),
        "long run": check_long_runs(context, min(mode.steps, context.extent.steps)),
        "last positions": check_last_positions(context),
        "replay": check_replay(context),
        "batches": check_batches(context),
        "streaming": check_streaming(context),
        "codes": check_codes(context, workload, constants),
        "free run": check_free_run(context, workload, constants),
        LONG_CODES: check_long_codes(
            context, workload, constants, min(mode.frames, bundle.job.cache_length - MAX_ROWS)
        ),
    }


def _run_checks(context: Context, bundle: Bundle, mode: Mode, left_out: tuple[str, ...]) -> Iterable[Result]:
    checks, extent = checks_of(context, bundle, mode), context.extent
    if extent.is_sample:
        compared = "" if mode.long_codes else "; not compared with full precision"
        detail = f"a model of billions of weights: {extent}{compared}"
        log.info("  checking a sample of %s", detail)
        yield Check("sample", True, detail)
    for name, check in checks.items():
        if name not in (*extent.left_out, *left_out):
            where = mode.suffix.replace(",", " in", 1)
            log.info("  checking%s: %s", where, name)
            advance(0, f"checking{where}: {name}")
            yield from guarded(check, name)
        advance(1)


def guarded(check: Iterable[Result], name: str) -> Iterable[Result]:
    """Turns an error of the engine, or arrays of unexpected shapes, into a failed check."""
    try:
        yield from check
    except (VoxportError, ArithmeticError, LookupError, ValueError) as error:
        yield Check(name, False, f"{type(error).__name__}: {error}")
