"""The README of a converted folder: metadata as model hubs read it, and what the folder holds."""

import re
from collections import Counter

import yaml
from pydantic import JsonValue

from voxport.export.conversion.outputs import Conversion
from voxport.export.conversion.plan import Plan
from voxport.model.config import Config
from voxport.model.family import Family
from voxport.model.stored_weights import PACKED, StoredWeights

LAYOUTS = {
    "mlx-audio": "for mlx-audio",
    "mlx": "for the modules of MLX",
    "pytorch": "in the published layout",
}
NUMBER = re.compile(r"\.\d+(?=\.|$)")


def conversion_card(
    family: Family, config: Config, source: StoredWeights, conversion: Conversion, plan: Plan
) -> str:
    """Weights that are random, or not of the published shapes, have no `license` and no `base_model`.

    The card follows from the tensors, so that a conversion of the folder to itself writes it again.
    """
    release = family.release_of(source, config)
    content: dict[str, JsonValue] = {}
    if release:
        content = {"license": release.licence, "base_model": release.name}
        content |= {"base_model_relation": "quantized"} if plan.integers else {}
    to_mlx = conversion.to == "mlx"
    content |= {
        "language": list(family.languages_of(source.folder, config) or family.languages),
        "pipeline_tag": family.task,
        "library_name": conversion.tag if to_mlx else family.name,
        "tags": ["voxport", *(["mlx"] if to_mlx else []), *(["random-weights"] if source.is_random else [])],
    }
    layout = LAYOUTS[conversion.tag]
    name = release.name if release else family.title
    lines = [
        f"# {name}, {layout}",
        "",
        f"Weights of {family.title}, converted by voxport. Floats are {_dtypes(plan)}.",
    ]
    if conversion.is_for_modules and source.pairs:
        lines.append(f"{len(source.pairs)} weight norms are folded into their weights.")
    lines += _integers(plan) if plan.integers else []
    lines += ["", "`sha256sum -c SHA256SUMS` checks the files.", ""]
    return f"---\n{yaml.safe_dump(content, sort_keys=False)}---\n\n" + "\n".join(lines)


def _dtypes(plan: Plan) -> str:
    outputs = (output for outputs in plan.files.values() for output in outputs)
    found = {entry.dtype for output in outputs for entry in output.entries} - {PACKED}
    return " and ".join(sorted(found))


def _integers(plan: Plan) -> list[str]:
    """Layers with integers, and layers of the recipe without."""
    recipe = f" (recipe {plan.recipe})" if plan.recipe else ""
    counts = Counter(plan.integers.values())
    kinds = "; ".join(
        f"{count} of {bits} bits in groups of {group}" for (bits, group), count in sorted(counts.items())
    )
    lines = [f"{len(plan.integers)} layers have integers{recipe}: {kinds}. `config.json` lists them."]
    for reason in sorted(set(plan.floats.values())):
        paths = [path for path, other in plan.floats.items() if other == reason]
        lines += ["", f"{len(paths)} layers stay floats, because {reason}:", ""]
        named = Counter(NUMBER.sub(".*", path) for path in paths)
        lines += [f"- `{path}`" + (f" ({count})" if count > 1 else "") for path, count in named.items()]
    return lines
