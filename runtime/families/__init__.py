"""The table of model families that the runtime can run. A family is imported when a bundle needs it."""

from importlib import import_module
from typing import Any, cast

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import ExportJob
from voxport.runtime.families.base import RuntimeFamily, parse_constants

FAMILIES = {  # name: the module that defines the object FAMILY
    "voxtral_tts": "voxport.runtime.families.voxtral_tts.family",
    "voxtral_realtime": "voxport.runtime.families.voxtral_realtime.family",
    "qwen3_tts": "voxport.runtime.families.qwen3_tts.family",
}


def open_family(name: str) -> RuntimeFamily[Any]:  # Any: each family has constants of its own type
    """Raises UsageError that lists the families, or if the name of one is not its key."""
    if name not in FAMILIES:
        raise UsageError(
            f"manifest.json: family {name!r} is unknown; this runtime supports {', '.join(FAMILIES)}"
        )
    found = cast(RuntimeFamily[Any], import_module(FAMILIES[name]).FAMILY)
    if found.name != name:
        raise UsageError(f"{FAMILIES[name]}: FAMILY.name is {found.name!r}, expected {name!r}, its key")
    return found


def read_constants(job: ExportJob) -> Any:  # Any: each family has constants of its own type
    """The constants of a job that has every component, input and output that its family calls.

    Raises UsageError or IntegrityError.
    """
    family = open_family(job.family)
    signatures = {entry.name: entry.signature for entry in job.components}
    for name, call in family.calls(job).items():
        if name not in signatures:
            raise IntegrityError(f"manifest.json: components: {name} is missing; export the bundle again")
        signature = signatures[name]
        for what, needed, found in (
            ("input", call.inputs, {spec.name for spec in signature.inputs}),
            ("output", call.outputs, {spec.name for spec in signature.outputs}),
            ("dimension", call.dims, signature.dims.keys()),
        ):
            if missing := needed - found:
                raise IntegrityError(
                    f"manifest.json: component {name} has no {what} {min(missing)}; export the bundle again"
                )
    return parse_constants(family.constants, job.constants)
