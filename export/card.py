"""READMEs of bundles and of converted folders: metadata as model hubs read it, then text.

https://huggingface.co/docs/hub/model-cards lists the keys. `voxport` is a key of this project.
"""

from collections.abc import Collection, Iterable
from math import prod
from pathlib import Path

import yaml
from pydantic import JsonValue

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import README, ComponentEntry, Manifest
from voxport.bundle.spec import StateSpec, TensorSpec
from voxport.export.resolve import ADAPTER, Resolved, Source
from voxport.export.targets.base import Target
from voxport.model.checkpoint import layer_of
from voxport.model.family import Family, Release
from voxport.model.foreign import ADAPTER_WEIGHTS
from voxport.quantize.calibration import Share


def bundle_card(manifest: Manifest, resolved: Resolved, target: Target, folder: Path) -> str:
    """The README of the bundle whose artifacts are in `folder`."""
    source = resolved.source
    calls = source.family.calls(source.config, resolved.options)
    exact = {name for name, graph in resolved.graphs.items() if not graph.float16}
    mixture = mixture_table(resolved.calibration.mixture) if resolved.calibration else ""
    readme = bundle_readme(manifest, calls, target, exact, target.engine_notes(folder))
    return model_card(manifest, source) + readme + mixture


def front_matter(
    family: Family,
    release: Release | None,
    is_quantised: bool,
    languages: Iterable[str],
    tags: Iterable[str],
    library: str = "voxport",
    **more: JsonValue,
) -> str:
    """The metadata between two lines of `---`.

    Weights that are random, or not of the published shapes, have no `release`: no licence and no base model.
    """
    content: Json = {}
    if release:
        content = {"license": release.licence, "base_model": release.name}
        content |= {"base_model_relation": "quantized"} if is_quantised else {}
    content |= {"language": list(languages), "pipeline_tag": family.task, "library_name": library}
    content |= {"tags": ["voxport", *tags], **more}
    return f"---\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}---\n\n"


def model_card(manifest: Manifest, source: Source) -> str:
    """The metadata of a bundle."""
    job, random = manifest.job, source.checkpoint.is_random
    recipes = sorted({recipe.name for recipe in job.recipes.values()} - {"none"})
    return front_matter(
        source.family,
        source.family.release_of(source.checkpoint, source.config),
        is_quantised=True,
        languages=job.languages,
        tags=(job.target, *recipes, *(["random-weights"] if random else [])),
        voxport={
            "family": job.family,
            "target": job.target,
            "compute_precision": job.compute_precision,
            "recipe": job.request.quant,
            "recipe_of_component": dict(job.request.quant_for),
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
    )


def _bytes(manifest: Manifest) -> Json:
    """Sizes of the artifacts of each graph, and of all files but the README."""
    files = {name: entry.size for name, entry in manifest.files.items() if name != README}
    graphs = dict.fromkeys(entry.graph for entry in manifest.job.components)
    sizes = {
        graph: sum(size for name, size in files.items() if name.startswith(f"{graph}.")) for graph in graphs
    }
    return {**sizes, "total": sum(files.values())}


def bundle_readme(
    manifest: Manifest, calls: str, target: Target, exact: Collection[str] = (), engines: str = ""
) -> str:
    """The text for the author of a native runner, complete without this project: the order of `calls`, with
    names and shapes. `exact` are graphs whose values exceed float16. `engines` says which engines run them.
    """
    job = manifest.job
    states = [state for entry in job.components for state in entry.signature.states]
    adapter = job.source.files.get(f"{ADAPTER}/{ADAPTER_WEIGHTS}")
    merged = f" A LoRA adapter is merged into them (sha256 {adapter.sha256})." if adapter else ""
    data = f"data {job.calibration_data}, " if job.calibration_data else ""
    statistics = f"{data}statistics {job.calibration}"
    calibrated = f"A calibration chose the integers (sha256: {statistics}).\n" * bool(job.calibration)
    parts = [
        f"# {job.source.name}, {job.target}, {job.request.quant}\n",
        f"Made by voxport. Licence of the weights: {job.licence}.{merged}\n"
        f"{calibrated}"
        "`manifest.json` has files, names, shapes and numbers for programs; `FORMAT.md` describes it. The\n"
        "order of calls and the use of each value are described here only. A verified bundle has\n"
        "`vectors.json`: values of a short run, for a runner to compare itself with.\n",
        calls.rstrip("\n") + "\n",
        "## Components\n",
        target.readme_notes(has_sliding_window=any(state.window for state in states)),
    ]
    if engines:
        parts.append(engines)
    if any(state.cache for state in states):
        size = sum(4 * prod(state.shape) for state in {state.name: state for state in states}.values()) / 1e6
        parts.append(
            f"The decoder's caches hold {job.cache_length} rows. All states have {size:.1f} MB in float32.\n"
        )
    return "\n".join([*parts, *(_component(entry, target, entry.graph in exact) for entry in job.components)])


def mixture_table(mixture: Iterable[Share]) -> str:
    """What `--quant auto` chose, a row for each layer. Empty without a mixture."""
    layers: dict[str, list[Share]] = {}
    for share in mixture:
        layers.setdefault(layer_of(share.path), []).append(share)
    if not layers:
        return ""
    recipes = sorted({share.recipe for shares in layers.values() for share in shares})
    lines = [
        "\n## Mixture\n",
        "Linears of each layer by recipe, and their share of the expected error of the outputs.\n",
        f"| layer | {' | '.join(recipes)} | share |",
        f"|---|{'---|' * len(recipes)}---|",
    ]
    for layer, shares in layers.items():
        names = [", ".join(_below(layer, each) for each in shares if each.recipe == name) for name in recipes]
        lines.append(f"| {layer} | {' | '.join(names)} | {sum(each.loss for each in shares):.1%} |")
    return "\n".join(lines) + "\n"


def _below(layer: str, share: Share) -> str:
    return share.path.removeprefix(f"{layer}.") if share.path != layer else "itself"


def _component(entry: ComponentEntry, target: Target, exceeds_float16: bool) -> str:
    purpose = f"`{entry.entry_point}` of `{entry.file}`: {entry.purpose}."
    recipe = f"Recipe {entry.recipe}, {entry.bits_per_weight} bits per weight."
    batch = f" Axis 0 of all tensors may be up to {entry.max_batch} streams." if entry.max_batch > 1 else ""
    lines = [
        f"### {entry.name}\n",
        f"{purpose} {recipe}{batch}\n",
        "| | name | dtype | shape |",
        "|---|---|---|---|",
    ]
    for direction, tensors in (("in", entry.signature.inputs), ("out", entry.signature.outputs)):
        for tensor in tensors:
            dtype = target.artifact_dtype(tensor.dtype)
            lines.append(f"| {direction} | {tensor.name} | {dtype} | {_shape(tensor, entry)} |")
    for state in entry.signature.states:
        name = target.state_name(entry.graph, state.name)
        dtype = target.state_dtype(state.dtype, exceeds_float16)
        lines.append(f"| state | {name} | {dtype} | {list(state.shape)}{_cache(state)} |")
    return "\n".join(lines) + "\n"


def _cache(state: StateSpec) -> str:
    if state.cache is None:
        return ""
    if state.window is None:
        return ", cache without a window"
    rows = state.cache.rows_per_position
    return f", cache with window {state.window}, {rows} row{'' if rows == 1 else 's'} per position"


def _shape(tensor: TensorSpec, entry: ComponentEntry) -> str:
    bounds = "; ".join(
        f"{name} {low} to {high}"
        for name, (low, high) in entry.signature.dims.items()
        if any(name == size for size in tensor.shape)
    )
    return f"[{', '.join(map(str, tensor.shape))}]" + (f" ({bounds})" if bounds else "")
