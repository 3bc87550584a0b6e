"""Verification of a bundle: the list of checks, and their run in every mode."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from voxport.bundle.errors import ExportError, VoxportError
from voxport.bundle.manifest import Bundle
from voxport.bundle.progress import advance
from voxport.export.memory import free_memory
from voxport.export.model import Model
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Graph, Target
from voxport.export.verify.code_checks import check_codes, compare_with_default
from voxport.export.verify.comparison import Assertion, Result
from voxport.export.verify.component_checks import (
    check_batches,
    check_components,
    check_last_positions,
    check_streaming,
)
from voxport.export.verify.context import Context, open_context
from voxport.export.verify.manifest_check import check_weight_errors
from voxport.export.verify.modes import DEFAULTS, Mode, VerifyOptions, modes
from voxport.export.verify.result import VerificationResult
from voxport.export.verify.run_checks import check_free_run, check_long_codes, check_long_runs, check_replay
from voxport.export.verify.vectors import check_vectors

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Check:
    """A check: whether it `applies` in a mode, and its `run`. No check depends on another one."""

    name: str
    run: Callable[[Context], Iterable[Result]]
    applies: Callable[[Mode], bool] = lambda mode: mode.extent.run_steps > 0


# In the first mode, `verify_graph` has read each graph back and compared its single calls.
CHECKS = (
    Check("components", check_components, lambda mode: not mode.is_first),
    Check("long run", check_long_runs),
    Check("last positions", check_last_positions),
    Check("replay", check_replay, lambda mode: mode.extent.replay_steps > 0),
    Check("batches", check_batches),
    Check("streaming", check_streaming),
    Check("codes", check_codes),
    Check("free run", check_free_run, lambda mode: mode.extent.free_steps > 0),
    Check("long codes", check_long_codes, lambda mode: mode.extent.frames > 0),
)


def verify(
    bundle: Bundle,
    model: Model,
    target: Target,
    options: VerifyOptions,
    checked: Sequence[Result] | None = None,
) -> VerificationResult:
    """Runs every check that the target allows. A failed check is part of the result and raises nothing.

    `checked` are the results of `verify_graph` for every graph, if it ran.
    """
    resolved = model.resolved
    results, found = list(checked or ()), modes(resolved, target, options)
    if checked is None:
        target.check_files(bundle)
        for graph in resolved.recipes:
            results += verify_graph(bundle, model, target, graph, options)
            model.pack(graph)
            free_memory()
    results += check_weight_errors(bundle.manifest.weight_errors, model.weight_errors)
    results += guarded(check_vectors(bundle, target), "vectors")
    for mode in found:
        # no name holds the engines of a mode, so they are freed before the next one opens its own
        results += _named(_run_checks(open_context(bundle, model, target, mode), mode), mode)
        free_memory()
    for approximation in resolved.source.family.verification.approximations:
        steps = found[0].extent.run_steps
        results += guarded(
            compare_with_default(approximation, resolved, target, model, steps), approximation.option
        )
    return VerificationResult.of(results)


def verify_graph(
    bundle: Bundle, model: Model, target: Target, graph: str, options: VerifyOptions = DEFAULTS
) -> list[Result]:
    """Reads one graph back, and checks single calls of its components in the first mode."""
    mode = modes(model.resolved, target, options)[0]
    found: list[Result] = [*_read_back(model.graph(graph), target, bundle.folder)]
    advance(0, f"checking {graph}")
    context = open_context(bundle, model, target, mode, graph)
    found += _named(guarded(check_components(context), f"components of {graph}"), mode)
    advance(1)
    return found


def count_steps(resolved: Resolved, target: Target, options: VerifyOptions) -> int:
    """The number of times that `verify` calls `advance(1)`."""
    return len(resolved.recipes) + sum(
        check.applies(mode) for mode in modes(resolved, target, options) for check in CHECKS
    )


def _read_back(graph: Graph, target: Target, folder: Path) -> Iterable[Assertion]:
    try:
        detail = target.check(graph, folder)
    except ExportError as error:
        yield Assertion(graph.name, False, str(error))
    else:
        if detail:
            yield Assertion(graph.name, True, detail)


def _run_checks(context: Context, mode: Mode) -> Iterable[Result]:
    if mode.extent.is_sample:
        absent = [f", no {check.name}" for check in CHECKS[1:] if not check.applies(mode)]
        compared = "" if mode.extent.frames else "; not compared with full precision"
        detail = f"a model of billions of weights: {mode.extent}{''.join(absent)}{compared}"
        log.info("  checking a sample of %s", detail)
        yield Assertion("sample", True, detail)
    for check in CHECKS:
        if check.applies(mode):
            where = mode.suffix.replace(",", " in", 1)
            log.info("  checking%s: %s", where, check.name)
            advance(0, f"checking{where}: {check.name}")
            yield from guarded(check.run(context), check.name)
            advance(1)


def _named(results: Iterable[Result], mode: Mode) -> list[Result]:
    return [replace(result, name=f"{result.name}{mode.suffix}") for result in results]


def guarded(results: Iterable[Result], name: str) -> Iterable[Result]:
    """Turns an error of the engine, or arrays of unexpected shapes, into a failed check."""
    try:
        yield from results
    except (VoxportError, ArithmeticError, LookupError, ValueError) as error:
        yield Assertion(name, False, f"{type(error).__name__}: {error}")
