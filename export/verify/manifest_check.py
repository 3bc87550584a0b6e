"""What a bundle claims of itself, against what its checkpoint gives: a check that believes the manifest would check nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import ValidationError

from bundle.bundle import MANIFEST, Bundle, FileEntry, Manifest, SchemeEntry, first_fault
from bundle.errors import IntegrityError, RecipeError, UsageError
from export.manifest import NOT_RUN, TOKENIZER, component_entry, recipe_entry, source_files
from export.source import Plan, Source
from export.targets.base import EntryPoint, Lowering
from export.verify.checks import SHORTEST_CACHE
from quantize.recipe import Rule, Scheme
from runtime.families import read_constants
from runtime.families.voxtral_tts.voices import load_voice


def plan_of(manifest: Manifest, source: Source) -> Plan:
    """The plan that a bundle was made by, read back from its manifest. Raises IntegrityError where it could not have been."""
    longest = source.family.longest_cache(source.config)
    if not SHORTEST_CACHE <= manifest.cache_length <= longest:
        raise IntegrityError(
            f"{MANIFEST}: cache_length {manifest.cache_length}: expected {SHORTEST_CACHE} to {longest}; export the bundle again"
        )
    graphs = manifest.recipe.graphs

    own = -len(source.family.high_precision) or None  # the family's own rules come last, and are added again

    def scheme(found: SchemeEntry | None) -> Scheme | None:
        return None if found is None else Scheme(found.bits, found.group, found.activations, found.channels)

    plan = Plan(
        quant=manifest.recipe.name,
        quant_for=tuple((graph, recipe.name) for graph, recipe in graphs.items()),
        rules=tuple(
            Rule(rule.pattern, scheme(rule.linears), scheme(rule.tables))
            for recipe in list(graphs.values())[:1]
            for rule in recipe.rules[:own]
        ),
        switches=manifest.switches,
        cache_length=manifest.cache_length,
    )
    try:
        source.describe(plan), source.recipes(plan)
    except ValidationError as error:
        raise IntegrityError(f"{MANIFEST}: switches: {first_fault(error)}; export the bundle again") from None
    except RecipeError as error:
        raise IntegrityError(f"{MANIFEST}: recipe: {error}; export the bundle again") from None
    return plan


def check_source(expected: dict[str, FileEntry], folder: Path, given: Path | None) -> None:
    """The reference must come from the very files that the bundle was made from."""
    found = source_files(folder)
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            where = "the embedded default" if given is None else str(folder)
            raise UsageError(
                f"{where}: {name} is not the file that the bundle was made from; give that checkpoint with --checkpoint"
            )


def check_claims(bundle: Bundle, source: Source, plan: Plan, lowering: Lowering) -> None:
    """All that a runtime believes: constants, recipe, components, voices, tokenizer. Raises IntegrityError that names the first that differs."""
    manifest, family = bundle.manifest, source.family
    dim = read_constants(manifest).dim
    claims = [
        ("family", manifest.family, family.name),
        ("constants", manifest.constants, family.constants(source.config, source.switches(plan))),
        ("recipe", manifest.recipe, recipe_entry(source, plan)),
        ("compute_precision", manifest.compute_precision, lowering.compute_precision),
        ("numerics", manifest.numerics in (NOT_RUN, *lowering.runners), True),
        ("voices", sorted(manifest.voices), sorted(source.voices)),
        (
            "tokenizer",
            manifest.tokenizer and manifest.files[manifest.tokenizer],
            manifest.source.files.get(TOKENIZER),
        ),
        ("components", len(manifest.components), len(source.describe(plan))),
    ]
    for found, component in zip(manifest.components, source.describe(plan, lowering.layout), strict=False):
        expected = component_entry(
            component,
            EntryPoint(found.file, found.entry_point, found.dims, found.rows_moved),
            found.recipe,
            {"bits_per_weight": found.bits_per_weight, "weight_bytes": found.weight_bytes},
            lowering.most_streams,
        )
        measured = {"weight_error": None, "weight_error_min_max": None}
        claims.append((f"component {component.name}", found.model_copy(update=measured), expected))
        claims += [
            (f"component {component.name}: bounds of {name}", name in component.signature.dims, True)
            for name in found.dims
        ]
    for key, claimed, given in claims:
        if claimed != given:
            raise IntegrityError(
                f"{bundle.folder / MANIFEST}: {key}: not what the checkpoint gives; export the bundle again"
            )
    for name, rows in source.voices.items():
        if not np.array_equal(load_voice(bundle, name, dim), rows.float().numpy()):
            raise IntegrityError(
                f"{bundle.folder / manifest.voices[name]}: not the voice of the checkpoint; export the bundle again"
            )
