"""Default names of bundles, and the differences between two exports in words."""

import hashlib
import json
import re

from pydantic import JsonValue

from voxport.bundle.manifest import ExportJob
from voxport.export.job import difference_path
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target

MAX_NAME = 150  # bytes; a file system takes 255, and the hidden folder of an export has a longer name
PLAIN = re.compile(r"[a-z0-9._-]+")  # has no capitals, because some file systems ignore case


def bundle_name(resolved: Resolved, checkpoint: str, target: Target) -> str:
    """`CHECKPOINT-TARGET-RECIPE`, and every option that differs from its default.

    Two exports of a checkpoint have one name only if all their options are equal. A value that does not fit
    into a file name is replaced by a hash, and so is the end of a long name.
    """
    request, family = resolved.request, resolved.source.family
    parts = [checkpoint, target.name, request.quant]
    overrides = sorted(set(request.quant_for))
    parts += [
        f"{component}-{recipe}"
        for component, recipe in overrides
        if recipe != resolved.default_recipe(resolved.graph_of.get(component, component))
    ]
    if request.rules:
        parts.append(f"rules-{_digest(request.rules)}")
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
            found.append(_part(name, value))
    return found


def _part(name: str, value: JsonValue) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return flag if value else f"no-{flag}"
    text = str(value)
    is_plain = PLAIN.fullmatch(text.replace(",", ""))
    return f"{flag}-{text.replace(',', '+') if is_plain else _digest(text)}"


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
    jobs = (found.model_dump(mode="json"), expected.model_dump(mode="json"))
    path = difference_path(*jobs, "job")
    return texts or ([path] if path else [])


def _choices(job: ExportJob) -> dict[str, JsonValue]:
    """Everything that the caller of an export chooses."""
    return {
        "family": job.family,
        "name of the checkpoint": job.source.name,
        "target": job.target,
        "quant": job.request.quant,
        "quant_for": ["=".join(pair) for pair in job.request.quant_for],
        "rules": list(job.request.rules),
        **job.options,
        "cache_length": job.cache_length,
        "compute_precision": job.compute_precision,
        **{f"the version of {name}": version for name, version in job.tools.items()},
    }


def _text(value: JsonValue) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "absent" if value is None else str(value)
