"""What each command of `python -m export` does. Torch is imported here, not before."""

from __future__ import annotations

import argparse
import json
import logging
import re
from pathlib import Path
from typing import Any

from bundle.bundle import Bundle
from bundle.errors import RecipeError, UsageError, VerificationError, VoxportError
from bundle.files import check_writable, write_whole
from bundle.manifest import ExportRequest
from export.bench import bench_eager
from export.build import REPORT, Output, build
from export.estimate import estimate
from export.job import describe, resolve, resolve_options, resolve_recipes
from export.model import Model
from export.source import Source
from export.targets import (
    HALVES,
    TARGETS,
    check_recipes,
    compute_precision,
    open_target,
    parse_targets,
    targets_of,
)
from export.verify.eager import EagerEngine
from export.verify.manifest_check import check_manifest, check_source
from export.verify.verify import failures, table
from export.verify.verify import verify as verify_bundle
from model.component import Component
from model.families import DEFAULT, FAMILIES, find_family, public_name, switches_of
from model.synthetic.checkpoint import embedded_default, embedded_name
from quantize.linear import float_activations
from quantize.recipe import RECIPES, find_recipe
from quantize.schemes import Scheme
from runtime.families import open_family
from runtime.trace import read_inputs, write_outputs

log = logging.getLogger("export")


def build_command(arguments: argparse.Namespace) -> int:
    targets = parse_targets(arguments.target)
    source = _source(arguments.checkpoint, arguments.model)
    request = _request(arguments, source)
    recipes = resolve_recipes(source, request)  # a bad override fails before anything is lowered
    for target in targets:
        compute_precision(target, arguments.compute_precision)
        check_recipes(target, recipes.values())
    _warn_of_missing_parts(source)
    results = [_build_target(arguments, source, request, target, len(targets) > 1) for target in targets]
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            print(_estimate_text(result) if arguments.dry_run else result["out"])
    return 0


def _warn_of_missing_parts(source: Source) -> None:
    if not source.tokenizer_files:
        log.warning(
            "%s: the checkpoint has no tokenizer; its bundle cannot read or write text", source.folder
        )
    if source.family.voices is not None and not source.voices:
        log.warning("%s: the checkpoint has no voices", source.folder)


def _build_target(
    arguments: argparse.Namespace, source: Source, request: ExportRequest, target: str, several: bool
) -> dict[str, Any]:
    """One bundle, or with --dry-run its estimate. `several`: --out is the folder of several bundles."""
    name = arguments.checkpoint.resolve().name if arguments.checkpoint else embedded_name(source.family.name)
    out = _out_folder(arguments, request, name, target, several)
    verifies = not arguments.no_verify
    expected = estimate(source, request, target, verifies, arguments.compute_precision)
    if arguments.dry_run:
        return {"target": target, "out": str(out), "exists": out.exists(), **expected}
    licence = (
        f"that of the checkpoint; {source.family.licence}"
        if arguments.checkpoint
        else "none needed: random weights"
    )
    lowering = open_target(target, arguments.compute_precision)
    job = resolve(source, request, lowering, name, licence)
    made = build(source, job, lowering, Output(out, arguments.force, verifies, expected["memory_bytes"]))
    bundle = Bundle(out)
    status = bundle.manifest.verification.status
    log.info("%s: %s, %s", out, "written" if made else "up to date, every file checked", status)
    return {"target": target, "out": str(out), "made": made, "bytes": bundle.size, "status": status}


def _out_folder(
    arguments: argparse.Namespace, request: ExportRequest, name: str, target: str, several: bool
) -> Path:
    if arguments.out:
        return Path(arguments.out / target) if several else Path(arguments.out)
    changes = "".join(f"-{component}-{recipe}" for component, recipe in request.quant_for)
    precision = "-float32" if arguments.compute_precision == "float32" else ""
    return Path("artifacts") / f"{name}-{target}-{request.quant}{changes}{precision}"


def list_command(arguments: argparse.Namespace) -> int:
    sources = {key: Source(embedded_default(key)) for key in FAMILIES}
    content: dict[str, Any] = {
        "families": {key: row.title for key, row in FAMILIES.items()},
        "targets": list(TARGETS),
        "recipes": {name: recipe.to_dict() for name, recipe in RECIPES.items()},
        "components": {
            key: {component.name: component.purpose for component in _all_components(source)}
            for key, source in sources.items()
        },
        "paths": {
            key: sorted({re.sub(r"\.\d+\.", ".N.", path) for path in source.quantizable})
            for key, source in sources.items()
        },
    }
    if arguments.json:
        print(json.dumps(content, indent=1))
        return 0
    print("models      " + ", ".join(map(public_name, FAMILIES)))
    print("targets     " + ", ".join(TARGETS))
    for name, recipe in RECIPES.items():
        print(f"recipe      {name:<8} {_described(recipe.linears)}; tables {_described(recipe.tables)}")
    for key, source in sources.items():
        print(f"\n{public_name(key)}")
        for component, purpose in content["components"][key].items():
            print(f"component   {component:<14} {purpose}")
        for path in content["paths"][key]:
            print(
                f"path        {path}{'  (kept as floats unless a rule says otherwise)' if path in source.family.high_precision else ''}"
            )
    return 0


def _all_components(source: Source) -> list[Component]:
    return describe(source, _full_request(source))


def _full_request(source: Source) -> ExportRequest:
    """With every switch that adds components."""
    return ExportRequest(
        options={
            name: True
            for name, field in source.family.switches.model_fields.items()
            if field.annotation is bool
        }
    )


def _described(scheme: Scheme | None) -> str:
    if scheme is None:
        return "full precision"
    allowed = targets_of(scheme)
    return scheme.describe() + (f" ({', '.join(sorted(allowed))} only)" if allowed else "")


def verify_command(arguments: argparse.Namespace) -> int:
    if arguments.steps < 1:
        raise UsageError(f"--steps {arguments.steps}: expected at least 1")
    bundle = Bundle(arguments.bundle)
    job = bundle.job
    for name in ("compute_precision", "compute_units"):
        if getattr(arguments, name) and job.target not in HALVES:
            raise UsageError(
                f"--{name.replace('_', '-')}: for Core ML bundles; {arguments.bundle} is for {job.target}"
            )
    bundle.check_hashes()
    source = _source(arguments.checkpoint, job.family)
    check_source(job.source.files, source, arguments.checkpoint is None)
    lowering = open_target(job.target, job.compute_precision if job.target in HALVES else None)
    check_manifest(bundle, source, lowering)
    precisions = (arguments.compute_precision,) if arguments.compute_precision else None
    if arguments.compute_units not in (None, "all") and None not in (precisions or lowering.precisions):
        raise UsageError(
            f"--compute-units {arguments.compute_units}: for Core ML itself, which does not run here; leave it out"
        )
    result = verify_bundle(
        bundle,
        source,
        lowering,
        arguments.steps,
        precisions=precisions,
        compute_units=arguments.compute_units,
    )
    try:
        write_whole(arguments.bundle / REPORT, (json.dumps(result, indent=1) + "\n").encode())
    except VoxportError as error:  # somebody else's bundle may lie where nobody writes
        log.warning("%s", error)
    print(json.dumps(result, indent=1) if arguments.json else table(result))
    if result["status"] == "failed":
        raise VerificationError(
            f"{arguments.bundle} does not match eager: " + "; ".join(failures(result)[:3])
        )
    return 0


def bench_command(arguments: argparse.Namespace) -> int:
    for name in ("frames", "prompt_tokens", "voice_rows", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected at least 1")
    source = _source(arguments.checkpoint, arguments.model)
    result = bench_eager(
        source,
        _full_request(source),
        arguments.voice_rows,
        arguments.threads,
        arguments.frames,
        arguments.prompt_tokens,
    )
    print(json.dumps(result, indent=1))
    return 0


def trace_command(arguments: argparse.Namespace) -> int:
    source = _source(arguments.checkpoint, arguments.model)
    request = _request(arguments, source)
    targets = parse_targets(arguments.target) if arguments.target else ()
    if len(targets) > 1:
        raise UsageError(f"--target {arguments.target}: a trace follows one target's arithmetic; give one")
    for target in targets:
        check_recipes(target, resolve_recipes(source, request).values())
    if arguments.compute_precision and not targets:
        raise UsageError("--compute-precision: of which target? give --target")
    lowering = open_target(targets[0], arguments.compute_precision) if targets else None
    layout = lowering.layout if lowering else "BSHD"
    model = Model(source, request, layout, lowering.compute_precision if lowering else "float32")
    kernel = lowering.linear_kernel if lowering else float_activations
    engine = EagerEngine(model.all_components(), layout, kernel)
    family, options = open_family(source.family.name), resolve_options(source, request)
    constants = family.parse_constants(source.family.constants(source.config, options), options.model_dump())
    inputs = read_inputs(arguments.inputs, family.trace_inputs(constants))
    check_writable(arguments.output)
    outputs = family.trace(engine, constants, inputs, arguments.live)
    write_outputs(arguments.output, outputs)
    print(
        json.dumps({name: array.shape for name, array in outputs.items()})
        if arguments.json
        else arguments.output
    )
    return 0


def _source(checkpoint: Path | None, model: str | None) -> Source:
    """`model` is what the checkpoint must be, or which is embedded. Raises UsageError where it is another."""
    key = find_family(model) if model else DEFAULT
    if checkpoint is None:
        return Source(embedded_default(key))
    source = Source(checkpoint)
    if model and source.family.name != key:
        raise UsageError(
            f"{checkpoint}: a checkpoint of {source.family.title}, not of {FAMILIES[key].title}; give another --checkpoint"
        )
    return source


def _switches(arguments: argparse.Namespace, source: Source) -> dict[str, Any]:
    """Those that were given. Raises UsageError on another family's, or on a value that makes no sense."""
    given = {}
    for key, row in FAMILIES.items():
        for name in switches_of(key).model_fields:
            if (value := getattr(arguments, name)) is None:
                continue
            if key != source.family.name:
                raise UsageError(
                    f"--{name.replace('_', '-')}: for {row.title}; this is {source.family.title}"
                )
            given[name] = value
    return given


def _request(arguments: argparse.Namespace, source: Source) -> ExportRequest:
    find_recipe(arguments.quant)
    overrides = []
    for text in arguments.quant_for:
        component, separator, recipe = text.partition("=")
        if not separator:
            raise RecipeError(f"--quant-for {text!r}: expected COMPONENT=RECIPE, as in codec=none")
        overrides.append((component, find_recipe(recipe).name))
    if arguments.cache_length is not None and arguments.cache_length < 1:
        raise RecipeError(f"--cache-length {arguments.cache_length}: expected at least 1 row")
    return ExportRequest(
        quant=arguments.quant,
        quant_for=tuple(overrides),
        rules=tuple(arguments.quant_rule),
        options=_switches(arguments, source),
        cache_length=arguments.cache_length,
    )


def _estimate_text(result: dict[str, Any]) -> str:
    what = (
        "exists: it would be checked, and with --force replaced" if result["exists"] else "would be written"
    )
    lines = [f"{result['out']}: {what}; for {result['target']}"]
    for graph, row in result["graphs"].items():
        lines.append(
            f"  {graph:<14} {row['weights'] / 1e6:>9.1f} M weights, {row['bytes'] / 1e6:>9.1f} MB, recipe {row['recipe']}"
        )
    disk, memory, seconds = result["disk_bytes"] / 1e9, result["memory_bytes"] / 1e9, result["seconds"]
    lines.append(
        f"  estimated: {disk:.3f} GB of disk, {memory:.1f} GB of memory at the peak, {seconds:.0f} s at this machine's speed of now"
    )
    return "\n".join(lines)
