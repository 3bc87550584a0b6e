"""What each command of `python -m export` does. Torch is imported here, not before."""

from __future__ import annotations

import argparse
import json
import logging
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bundle.bundle import Bundle, first_fault
from bundle.errors import RecipeError, UsageError, VerificationError, VoxportError
from bundle.files import check_place, write_whole
from export.bench import bench_eager
from export.build import REPORT, Request, build
from export.estimate import estimate
from export.manifest import TOKENIZER
from export.source import Model, Plan, Source
from export.targets import HALVES, TARGETS, check_recipes, compute_precision, open_target, parse_targets
from export.verify.checks import SHORTEST_CACHE
from export.verify.eager import EagerEngine
from export.verify.manifest_check import check_claims, check_source, plan_of
from export.verify.verify import failures, table
from export.verify.verify import verify as verify_bundle
from model.component import Component
from model.families import DEFAULT, FAMILIES, find_family, public_name, switches_of
from model.synthetic.checkpoint import embedded_default, embedded_name
from quantize.linear import float_activations
from quantize.recipe import RECIPES, Scheme, find_recipe, parse_rule
from runtime.families import open_family
from runtime.trace import read_inputs, write_outputs

log = logging.getLogger("export")


def build_command(arguments: argparse.Namespace) -> int:
    targets = parse_targets(arguments.target)
    source = _source(arguments.checkpoint, arguments.model)
    plan = _plan(arguments, source)
    name = arguments.checkpoint.resolve().name if arguments.checkpoint else embedded_name(source.family.name)
    recipes = source.recipes(plan)  # a bad override fails before anything is lowered
    for target in targets:
        compute_precision(target, arguments.compute_precision)
        check_recipes(target, recipes.values())
    for what, there in (
        ("tekken.json, so that its bundle reads no text", (source.folder / TOKENIZER).is_file()),
        ("voices", bool(source.voices) or source.family.voices is None),
    ):
        if not there:
            log.warning("%s: this checkpoint has no %s", source.folder, what)
    results = []
    precise = "-float32" if arguments.compute_precision == "float32" else ""
    for target in targets:
        changes = "".join(f"-{component}-{recipe}" for component, recipe in plan.quant_for)
        out = arguments.out or Path("artifacts") / f"{name}-{target}-{plan.quant}{changes}{precise}"
        if arguments.out and len(targets) > 1:
            out = arguments.out / target
        expected = estimate(source, plan, target, not arguments.no_verify, arguments.compute_precision)
        if arguments.dry_run:
            results.append({"target": target, "out": str(out), "exists": out.exists(), **expected})
            continue
        licence = (
            f"that of the checkpoint; {source.family.licence}"
            if arguments.checkpoint
            else "none needed: random weights"
        )
        request = Request(
            name,
            target,
            out,
            plan,
            licence,
            arguments.force,
            not arguments.no_verify,
            expected["memory_bytes"],
        )
        lowering = open_target(target, arguments.compute_precision)
        folder, made = build(source, lowering, request)
        manifest = Bundle(folder).manifest
        size = sum(entry.size for entry in manifest.files.values())
        log.info(
            "%s: %s, %s",
            folder,
            "written" if made else "up to date, every file checked",
            manifest.verification.status,
        )
        results.append(
            {
                "target": target,
                "out": str(folder),
                "made": made,
                "bytes": size,
                "status": manifest.verification.status,
            }
        )
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            print(_estimate_text(result) if arguments.dry_run else result["out"])
    return 0


def list_command(arguments: argparse.Namespace) -> int:
    sources = {key: Source(embedded_default(key)) for key in FAMILIES}
    content: dict[str, Any] = {
        "families": {key: row.title for key, row in FAMILIES.items()},
        "targets": list(TARGETS),
        "recipes": {name: recipe.describe() for name, recipe in RECIPES.items()},
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
        scheme = recipe.linears
        what = "full precision" if scheme is None else f"{_held(scheme)}, tables int8"
        print(
            f"recipe      {name:<8} {what}{', int8 activations on every target' if scheme and scheme.activations == 'int8' else ''}"
        )
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
    return source.describe(_whole_plan(source))


def _whole_plan(source: Source) -> Plan:
    """With every switch that adds components."""
    return Plan(
        switches={
            name: True
            for name, field in source.family.switches.model_fields.items()
            if field.annotation is bool
        }
    )


def _held(scheme: Scheme) -> str:
    if scheme.channels:
        return f"palettes of {2**scheme.bits} values for {scheme.channels} output channels (Core ML only)"
    return f"int{scheme.bits}, {f'groups of {scheme.group}' if scheme.group else 'per output channel'}"


def verify_command(arguments: argparse.Namespace) -> int:
    if arguments.steps < 1:
        raise UsageError(f"--steps {arguments.steps}: expected at least 1")
    bundle = Bundle(arguments.bundle)
    manifest = bundle.manifest
    for name in ("compute_precision", "compute_units"):
        if getattr(arguments, name) and manifest.target not in HALVES:
            raise UsageError(
                f"--{name.replace('_', '-')}: for Core ML bundles; {arguments.bundle} is for {manifest.target}"
            )
    bundle.check_hashes()
    source = _source(arguments.checkpoint, manifest.family)
    check_source(manifest.source.files, source.folder, arguments.checkpoint)
    plan = plan_of(manifest, source)
    lowering = open_target(manifest.target, manifest.compute_precision if manifest.target in HALVES else None)
    check_claims(bundle, source, plan, lowering)
    precisions = (arguments.compute_precision,) if arguments.compute_precision else None
    if arguments.compute_units not in (None, "all") and None not in (precisions or lowering.precisions):
        raise UsageError(
            f"--compute-units {arguments.compute_units}: for Core ML itself, which does not run here; leave it out"
        )
    result = verify_bundle(
        bundle,
        source,
        plan,
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
        _whole_plan(source),
        arguments.voice_rows,
        arguments.threads,
        arguments.frames,
        arguments.prompt_tokens,
    )
    print(json.dumps(result, indent=1))
    return 0


def trace_command(arguments: argparse.Namespace) -> int:
    source = _source(arguments.checkpoint, arguments.model)
    plan = _plan(arguments, source)
    targets = parse_targets(arguments.target) if arguments.target else ()
    if len(targets) > 1:
        raise UsageError(f"--target {arguments.target}: a trace follows one target's arithmetic; give one")
    for target in targets:
        check_recipes(target, source.recipes(plan).values())
    if arguments.compute_precision and not targets:
        raise UsageError("--compute-precision: of which target? give --target")
    lowering = open_target(targets[0], arguments.compute_precision) if targets else None
    layout = lowering.layout if lowering else "BSHD"
    model = Model(source, plan, layout, lowering is not None and lowering.halves)
    product = lowering.product if lowering else float_activations
    engine = EagerEngine(model.all_components(), source.rows(plan), layout, product)
    family, switches = open_family(source.family.name), source.switches(plan)
    constants = family.parse_constants(
        source.family.constants(source.config, switches), switches.model_dump()
    )
    inputs = read_inputs(arguments.inputs, family.trace_inputs(constants))
    check_place(arguments.output)
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
    try:
        return source.family.switches(**given).model_dump()
    except ValidationError as error:
        raise UsageError(f"--{first_fault(error).replace('_', '-', 1)}") from None


def _plan(arguments: argparse.Namespace, source: Source) -> Plan:
    find_recipe(arguments.quant)
    longest = source.family.longest_cache(source.config)
    if arguments.cache_length is not None and not SHORTEST_CACHE <= arguments.cache_length <= longest:
        raise RecipeError(
            f"--cache-length {arguments.cache_length}: expected {SHORTEST_CACHE} to {longest} rows"
        )
    overrides = []
    for text in arguments.quant_for:
        component, separator, recipe = text.partition("=")
        if not separator:
            raise RecipeError(f"--quant-for {text!r}: expected COMPONENT=RECIPE, as in codec=none")
        overrides.append((component, find_recipe(recipe).name))
    return Plan(
        quant=arguments.quant,
        quant_for=tuple(overrides),
        rules=tuple(parse_rule(text) for text in arguments.quant_rule),
        switches=_switches(arguments, source),
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
