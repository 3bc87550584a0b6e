"""Makes an `ExportJob`: everything that decides a bundle's artifacts, as the manifest records it."""

import hashlib
import json

from pydantic import JsonValue

from voxport.bundle.manifest import ComponentEntry, ExportJob
from voxport.bundle.manifest import Source as SourceEntry
from voxport.bundle.versions import package_version
from voxport.export.code_key import code_key
from voxport.export.estimate import GraphWeights, graph_weights
from voxport.export.resolve import Resolved
from voxport.export.targets import check_recipes
from voxport.export.targets.base import Target
from voxport.model.component import Component


def make_job(resolved: Resolved, target: Target, name: str) -> ExportJob:
    """The job of an export to `target`; `name` is the name of the checkpoint.

    Raises RecipeError if the target cannot hold a scheme.
    """
    source, recipes = resolved.source, resolved.recipes
    check_recipes(target, recipes.values())
    target.check_installed()
    weights = graph_weights(resolved, target.float_bytes)
    versions = {
        package: package_version(package) for package in sorted({*target.packages, "torch", "torchao"})
    }
    return ExportJob(
        family=source.family.name,
        source=SourceEntry(name=name, files=source.files),
        request=resolved.request,
        target=target.name,
        compute_precision=target.compute_precision,
        options=resolved.options.model_dump(),
        constants=resolved.constants,
        recipes={graph: recipe.to_entry() for graph, recipe in recipes.items()},
        cache_length=resolved.cache_length,
        components=tuple(
            _entry(target, component, recipes[component.graph].name, weights[component.graph])
            for component in resolved.components(target.layout)
        ),
        licence=source.licence,
        languages=source.languages,
        tools=versions | {"voxport": code_key(target)},
    )


def _entry(target: Target, component: Component, recipe: str, weights: GraphWeights) -> ComponentEntry:
    where = target.entry_point(component)
    return ComponentEntry(
        name=component.name,
        graph=component.graph,
        purpose=component.purpose,
        signature=target.signature(component),
        file=where.file,
        entry_point=where.name,
        max_batch=target.max_batch if component.batched else 1,
        state_rows_per_call=where.state_rows_per_call,
        recipe=recipe,
        bits_per_weight=round(8 * weights.stored / weights.count, 2),
        weight_bytes=int(weights.read),
    )


def graph_key(job: ExportJob, graph: str) -> str:
    """Hash of everything that decides the artifact of one graph: what a resumed export may reuse."""
    components = tuple(entry for entry in job.components if entry.graph == graph)
    part = job.model_copy(update={"recipes": {graph: job.recipes[graph]}, "components": components})
    content = part.model_dump(mode="json", exclude={"request", "licence", "languages"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def difference_path(found: JsonValue, expected: JsonValue, path: str) -> str | None:
    """Path of the first value in which two JSON values differ, below `path`; None if they are equal."""
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = sorted(found.keys() | expected.keys())
        pairs = [(f"{path}.{key}", found.get(key), expected.get(key)) for key in keys]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(f"{path}.{place}", *both) for place, both in enumerate(zip(found, expected, strict=True))]
    else:
        return None if found == expected else path
    return next(filter(None, (difference_path(one, other, below) for below, one, other in pairs)), None)
