"""The head of a bundle's README: metadata in YAML, as model hubs read it.

https://huggingface.co/docs/hub/model-cards lists the keys. `voxport` is a key of this project.
"""

import yaml

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import README, Manifest
from voxport.export.resolve import Source


def model_card(manifest: Manifest, source: Source) -> str:
    """The metadata of a bundle between two lines of `---`.

    Weights that are random, or not of the published shapes, have no `license` and no `base_model`.
    """
    job, family = manifest.job, source.family
    release = family.release_of(source.checkpoint, source.config)
    content: Json = {}
    if release:
        content = {"license": release.licence, "base_model": release.name, "base_model_relation": "quantized"}
    content |= {
        "language": list(job.languages),
        "pipeline_tag": family.task,
        "library_name": "voxport",
        "tags": _tags(manifest, source.checkpoint.is_random),
        "voxport": {
            "family": job.family,
            "target": job.target,
            "compute_precision": job.compute_precision,
            "recipe": job.request.quant,
            "recipe_of_component": {name: recipe for name, recipe in job.request.quant_for},
            "rules": list(job.request.rules),
            "options": job.options,
            "cache_length": job.cache_length,
            "bytes": _bytes(manifest),
            "verification": {
                "status": manifest.verification.status,
                "executed_by": manifest.executed_by,
                "checks": len(manifest.verification.rows),
            },
        },
    }
    return f"---\n{yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)}---\n\n"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no annotations
    """Quotes each text that begins with no letter: `1e3` is a text in YAML 1.1, and a number in YAML 1.2."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text[:1].isalpha() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _tags(manifest: Manifest, is_random: bool) -> list[str]:
    job = manifest.job
    recipes = sorted({recipe.name for recipe in job.recipes.values()} - {"none"})
    return ["voxport", job.target, *recipes, *(["random-weights"] if is_random else [])]


def _bytes(manifest: Manifest) -> dict[str, int]:
    """Sizes of the artifacts of each graph, and of all files but the README."""
    files = {name: entry.size for name, entry in manifest.files.items() if name != README}
    graphs = dict.fromkeys(entry.graph for entry in manifest.job.components)
    sizes = {
        graph: sum(size for name, size in files.items() if name.startswith(f"{graph}.")) for graph in graphs
    }
    return {**sizes, "total": sum(files.values())}
