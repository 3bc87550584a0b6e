"""An `ExportJob`, everything that decides a bundle's artifacts: its making, name, keys and differences."""

import hashlib
import inspect
import json
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from voxport.bundle.files import hub_origin
from voxport.bundle.manifest import ComponentEntry, ExportJob, SourceEntry, file_entry
from voxport.bundle.versions import package_version
from voxport.export.estimate import GraphWeights, graph_weights
from voxport.export.resolve import Resolved
from voxport.export.targets import check_recipes
from voxport.export.targets.base import Target
from voxport.model.foreign import ADAPTER_WEIGHTS
from voxport.model.graph import Component

MAX_NAME = 150  # bytes; a file system takes 255, and the hidden folder of an export has a longer name
PLAIN = re.compile(r"[a-z0-9._-]+")  # has no capitals, because some file systems ignore case
ROOT = Path(__file__).resolve().parent.parent
# Code that decides the artifacts of every target, beside the folder of the target. The job records what the
# rest decides: options, recipes, components, source files, versions of tools.
LOWERING = (
    "bundle/constants*",
    "bundle/manifest.py",
    "bundle/spec.py",
    "bundle/weight_blobs.py",
    "export/model.py",
    "export/resolve.py",
    "export/targets/*.py",
    "model",
    "quantize",
)
# Modules in these that decide no artifact: other commands, other ways to get a checkpoint, texts for people.
NOT_LOWERING = (
    "export/targets/__init__.py",
    "export/targets/*/copies.py",
    "export/targets/*/read_back.py",
    "model/__main__.py",
    "model/download.py",
    "model/embedded.py",
    "model/foreign.py",
    "model/inspection.py",
    "model/mlx/*",
    "model/other_weights.py",
    "model/stored_weights.py",
    "model/synthetic/*",
    "model/*/sizes.py",
    "model/*/synthetic.py",
)


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
        source=SourceEntry(name=name, origin=hub_origin(source.folder), files=source.files),
        request=resolved.request,
        target=target.name,
        compute_precision=target.compute_precision,
        options=resolved.options.model_dump(),
        constants=resolved.constants.model_dump(mode="json"),
        recipes={graph: recipe.to_entry() for graph, recipe in recipes.items()},
        cache_length=resolved.cache_length,
        calibration=resolved.request.calibration,
        calibration_data=resolved.calibration.data if resolved.calibration else None,
        components=tuple(
            _entry(target, component, recipes[component.graph].name, weights[component.graph])
            for component in resolved.components(target.layout)
        ),
        licence=source.licence,
        languages=source.languages,
        tools=versions | {"voxport": code_key(target)},
    )


def _entry(target: Target, component: Component, recipe: str, weights: GraphWeights) -> ComponentEntry:
    place = target.entry_point(component)
    return ComponentEntry(
        name=component.name,
        graph=component.graph,
        purpose=component.purpose,
        signature=target.signature(component),
        file=place.file,
        entry_point=place.name,
        max_batch=target.max_batch if component.batched else 1,
        state_rows_per_call=place.state_rows_per_call,
        recipe=recipe,
        bits_per_weight=round(8 * weights.stored / weights.count, 2),
        weight_bytes=int(weights.read),
    )


def graph_key(job: ExportJob, graph: str) -> str:
    """Hash of everything that decides the artifact of one graph: what a resumed export may reuse."""
    components = tuple(entry for entry in job.components if entry.graph == graph)
    part = job.model_copy(update={"recipes": {graph: job.recipes[graph]}, "components": components})
    content = part.model_dump(mode="json", exclude={"request", "languages", "calibration_data"})
    del content["source"]["origin"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def described_as(job: ExportJob, other: ExportJob) -> ExportJob:
    """`job` with what decides no artifact as in `other`: wording of the request, origin of the checkpoint."""
    source = job.source.model_copy(update={"origin": other.source.origin})
    return job.model_copy(update={"request": other.request, "source": source})


def code_key(target: Target) -> str:
    """Hash of the code that decides the artifacts of a target. A change elsewhere leaves bundles valid."""
    return lowering_key(Path(inspect.getfile(type(target))).resolve().parent)


@cache
def lowering_key(target: Path, root: Path = ROOT) -> str:
    """The hash for the target whose folder is `target`, in the tree `root`."""
    found = [path for pattern in LOWERING for path in root.glob(pattern)]
    modules = {module for path in found for module in (path.rglob("*.py") if path.is_dir() else [path])}
    paths = [path for path in (*sorted(modules), *sorted(target.rglob("*.py"))) if _decides(path, root)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _decides(path: Path, root: Path) -> bool:
    if not path.is_relative_to(root):  # a target outside the project
        return True
    name = path.relative_to(root).as_posix()
    return not any(fnmatchcase(name, pattern) for pattern in NOT_LOWERING)


def bundle_name(resolved: Resolved, checkpoint: str, target: Target, calibration: str = "") -> str:
    """`CHECKPOINT-TARGET-RECIPE`, the name of the `calibration`, and every option that differs from its
    default.

    Two exports of a checkpoint have one name only if all their options are equal. A value that does not fit
    into a file name is replaced by a hash, and so is the end of a long name.
    """
    request, family = resolved.request, resolved.source.family
    parts = [checkpoint, target.name, request.quant]
    parts += [
        f"{component}-{recipe}"
        for component, recipe in sorted(set(request.quant_for))
        if recipe != resolved.default_recipe(resolved.graph_of.get(component, component))
    ]
    if calibration:
        parts.append(calibration)
    if request.rules:
        parts.append(f"rules-{_digest(request.rules)}")
    if adapter := resolved.source.family.layout.adapter:
        parts.append(f"adapter-{file_entry(adapter / ADAPTER_WEIGHTS).sha256[:8]}")
    parts += _changed_options(resolved)
    if resolved.cache_length != family.default_cache(resolved.source.config, resolved.options):
        parts.append(f"cache-{resolved.cache_length}")
    if target.compute_precision != target.compute_precisions[0]:
        parts.append(target.compute_precision)
    name = "-".join(parts)
    if len(name.encode()) <= MAX_NAME:
        return name
    kept = name.encode()[: MAX_NAME - 9].decode(errors="ignore")
    return f"{kept}-{_digest(name)}"


def _changed_options(resolved: Resolved) -> list[str]:
    """The default of an option may depend on the other ones."""
    family, values = resolved.source.family, resolved.options.model_dump()
    found = []
    for name, value in values.items():
        others = {other: values[other] for other in values if other != name}
        defaults = family.options(**family.option_defaults(resolved.source.config) | others)
        if value != getattr(defaults, name):
            found.append(_option(name.replace("_", "-"), value))
    return found


def _option(name: str, value: JsonValue) -> str:
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    text = str(value)
    is_plain = PLAIN.fullmatch(text.replace(",", ""))
    return f"{name}-{text.replace(',', '+') if is_plain else _digest(text)}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]


def differences(found: ExportJob, expected: ExportJob) -> list[str]:
    """The options in which two jobs differ, each with both values; then files and tools. Empty if equal."""
    there, here = _choices(found), _choices(expected)
    if found.recipes == expected.recipes:  # however they are spelled
        for name in ("quant", "quant_for", "rules"):
            there.pop(name), here.pop(name)
    texts = [
        f"{name} is {_text(there.get(name))} there and {_text(here.get(name))} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]
    files = sorted(found.source.files.keys() | expected.source.files.keys())
    changed = [name for name in files if found.source.files.get(name) != expected.source.files.get(name)]
    if changed:
        texts.append(f"{changed[0]} of the checkpoint is another file")
    path = difference_path(found.model_dump(mode="json"), expected.model_dump(mode="json"), "job")
    return texts or ([path] if path else [])


def _choices(job: ExportJob) -> dict[str, JsonValue]:
    return {
        "family": job.family,
        "name of the checkpoint": job.source.name,
        "target": job.target,
        "quant": job.request.quant,
        "quant_for": ["=".join(pair) for pair in job.request.quant_for],
        "rules": list(job.request.rules),
        **job.options,
        "cache_length": job.cache_length,
        "data of the calibration": job.calibration_data,
        "calibration": job.calibration,
        "compute_precision": job.compute_precision,
        **{
            "the code that exports" if name == "voxport" else f"the version of {name}": version
            for name, version in job.tools.items()
        },
    }


def _text(value: JsonValue) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "absent" if value is None else str(value)


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
