"""What each command of `python -m export` does. Torch is imported here, not before."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

from export.build import Request, build
from export.compare import VerificationError
from export.eager import EagerEngine, use_arithmetic
from export.estimate import estimate
from export.lowering import ExportError
from export.manifest import LICENCE
from export.source import Model, Plan, Source
from export.targets import TARGETS, open_target, parse_targets
from export.verify import failures, table
from export.verify import verify as verify_bundle
from model.families import FAMILIES
from model.layers.attention import ReferenceAttention
from model.synthetic import embedded_default
from quantize.linear import float_activations
from quantize.recipe import RECIPES, RecipeError, Rule, Scheme, find_recipe, parse_rule
from runtime.bundle import Bundle, file_entry
from runtime.errors import UsageError
from runtime.trace import read_inputs, write_outputs
from runtime.trace import trace as trace_utterance
from runtime.voxtral_tts import parse_constants

EMBEDDED_NAME = "voxtral-tts-tiny"
log = logging.getLogger("export")


def build_command(arguments: argparse.Namespace) -> int:
    targets = parse_targets(arguments.target)
    plan, source = _plan(arguments), _source(arguments.checkpoint)
    name = arguments.checkpoint.resolve().name if arguments.checkpoint else EMBEDDED_NAME
    source.recipes(plan)  # a bad override fails before anything is lowered
    results = []
    for target in targets:
        out = arguments.out or Path("artifacts") / f"{name}-{target}-{plan.quant}"
        if arguments.out and len(targets) > 1:
            out = arguments.out / target
        if arguments.dry_run:
            results.append({"target": target, "out": str(out), **estimate(source, plan, target)})
            continue
        licence = LICENCE["checkpoint" if arguments.checkpoint else "embedded"]
        request = Request(name, target, out, plan, licence, arguments.force, not arguments.no_verify)
        folder, made = build(source, open_target(target), request)
        manifest = Bundle(folder).manifest
        size = sum(entry.size for entry in manifest.files.values())
        status = manifest.verification["status"] if manifest.numerics != "not run" else "numerics not run"
        log.info("%s: %s, %s", folder, "written" if made else "up to date, every file checked", status)
        results.append({"target": target, "out": str(folder), "made": made, "bytes": size, "status": status})
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            print(_estimate_text(result) if arguments.dry_run else result["out"])
    return 0


def list_command(arguments: argparse.Namespace) -> int:
    source = _source(None)
    components = source.describe(Plan())
    content = {
        "families": {name: family.title for name, family in FAMILIES.items()},
        "targets": list(TARGETS),
        "recipes": {name: recipe.describe() for name, recipe in RECIPES.items()},
        "components": {component.name: component.purpose for component in components},
    }
    if arguments.json:
        print(json.dumps(content, indent=1))
        return 0
    print("families    " + ", ".join(content["families"]))
    print("targets     " + ", ".join(TARGETS))
    for name, recipe in RECIPES.items():
        scheme = recipe.linears
        what = "full precision" if scheme is None else f"int{scheme.bits}, {f'groups of {scheme.group}' if scheme.group else 'per output channel'}, tables int8"
        print(f"recipe      {name:<8} {what}{', int8 activations on every target' if scheme and scheme.activations == 'int8' else ''}")
    for component in components:
        print(f"component   {component.name:<14} {component.purpose}")
    return 0


def verify_command(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    bundle.check_hashes()
    manifest = bundle.manifest
    source = _source(arguments.checkpoint)
    _check_source(manifest.source.files, source.folder, arguments.checkpoint)
    lowering = open_target(manifest.target)
    if manifest.numerics == "not run":
        return _verify_structure(arguments, source, _plan_of(manifest), lowering)
    result = verify_bundle(bundle, source, _plan_of(manifest), lowering, arguments.steps)
    (arguments.bundle / "verify.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1) if arguments.json else table(result))
    if result["status"] != "passed":
        raise VerificationError(f"{arguments.bundle} does not match eager: " + "; ".join(failures(result)[:3]))
    return 0


def _verify_structure(arguments: argparse.Namespace, source: Source, plan: Plan, lowering: Any) -> int:
    """What can be said of artifacts that nothing here executes."""
    model = Model(source, plan, source.recipes(plan), lowering.layout)
    for graph in model.graphs():
        try:
            lowering.check(graph, arguments.bundle)
        except ExportError as error:
            raise VerificationError(f"{arguments.bundle}: {error}") from None
    result = {"status": "structure and weights", "numerics": "not run", "graphs": list(model.reports)}
    said = f"{', '.join(model.reports)}: hashes, functions, states, integers and scales are right; numerics not run"
    print(json.dumps(result, indent=1) if arguments.json else said)
    return 0


def trace_command(arguments: argparse.Namespace) -> int:
    plan, source = _plan(arguments), _source(arguments.checkpoint)
    lowering = open_target(parse_targets(arguments.target)[0]) if arguments.target else None
    layout = lowering.layout if lowering else "BSHD"
    model = Model(source, plan, source.recipes(plan), layout)
    product = lowering.product if lowering else float_activations
    components = model.all_components()
    use_arithmetic(components, product, ReferenceAttention(layout))
    engine = EagerEngine(components, plan.cache_length)
    constants = parse_constants(source.family.constants(source.config))
    inputs = read_inputs(arguments.inputs, constants)
    write_outputs(arguments.output, trace_utterance(engine, constants, plan.switches["first_frame"], inputs))
    print(arguments.output)
    return 0


def _source(checkpoint: Path | None) -> Source:
    return Source(checkpoint if checkpoint else embedded_default())


def _plan(arguments: argparse.Namespace) -> Plan:
    find_recipe(arguments.quant)
    if not 16 <= arguments.cache_length <= 131072:
        raise RecipeError(f"--cache-length {arguments.cache_length}: expected 16 to 131072 rows")
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
        switches={"first_frame": arguments.first_frame, "alibi_slopes": arguments.alibi_slopes},
        cache_length=arguments.cache_length,
    )


def _plan_of(manifest: Any) -> Plan:
    """The plan that a bundle was made by, read back from its manifest."""
    recipes = {graph: recipe["name"] for graph, recipe in manifest.recipe["graphs"].items()}
    rules = next(iter(manifest.recipe["graphs"].values()))["rules"]

    def scheme(found: dict[str, Any] | None) -> Scheme | None:
        return None if found is None else Scheme(found["bits"], found["group"], found["activations"])

    return Plan(
        quant=manifest.recipe["name"],
        quant_for=tuple(recipes.items()),
        rules=tuple(Rule(rule["pattern"], scheme(rule["scheme"])) for rule in rules),
        switches=manifest.switches,
        cache_length=manifest.cache_length,
    )


def _check_source(expected: dict[str, Any], folder: Path, given: Path | None) -> None:
    """The reference must come from the very files that the bundle was made from."""
    for name, entry in expected.items():
        path = folder / name
        if not path.is_file() or file_entry(path) != entry:
            where = "the embedded default" if given is None else str(folder)
            raise UsageError(f"{where}: {name} is not the file that the bundle was made from; give its checkpoint with --checkpoint")


def _estimate_text(result: dict[str, Any]) -> str:
    lines = [f"{result['out']}: would be written for {result['target']}"]
    for graph, row in result["graphs"].items():
        lines.append(f"  {graph:<14} {row['weights'] / 1e6:>9.1f} M weights, {row['bytes'] / 1e6:>9.1f} MB, recipe {row['recipe']}")
    lines.append(f"  disk {result['disk_bytes'] / 1e9:.2f} GB, memory {result['memory_bytes'] / 1e9:.2f} GB at the peak (estimates)")
    return "\n".join(lines)
