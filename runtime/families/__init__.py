"""The table of model families that run here. A family's module is imported when a bundle asks for it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from bundle.errors import IntegrityError, UsageError
from bundle.manifest import ExportJob
from runtime.families.base import RuntimeFamily

FAMILIES = {
    "voxtral_tts": "runtime.families.voxtral_tts.model",
    "voxtral_realtime": "runtime.families.voxtral_realtime.model",
}


def open_family(name: str) -> RuntimeFamily:
    """Raises UsageError that lists what there is."""
    if name not in FAMILIES:
        raise UsageError(
            f"manifest.json: a bundle of family {name!r}; this runtime knows {', '.join(FAMILIES)}"
        )
    return cast(RuntimeFamily, import_module(FAMILIES[name]))


def read_constants(job: ExportJob, expected: str | None = None) -> Any:
    """The family's constants, of a bundle with all that its runtime calls. Raises UsageError where the bundle is not of the `expected`
    family, or IntegrityError."""
    if expected not in (None, job.family):
        raise UsageError(
            f"manifest.json: a bundle of family {job.family!r}; this command is for {expected} (say speaks, transcribe listens)"
        )
    family = open_family(job.family)
    entries = {entry.name: entry for entry in job.components}
    for name, (inputs, outputs) in family.CALLS.items():
        if name not in entries:
            raise IntegrityError(f"manifest.json: components: {name} is missing; export the bundle again")
        for what, needed, found in (
            ("input", inputs, entries[name].signature.inputs),
            ("output", outputs, entries[name].signature.outputs),
        ):
            if needed - {tensor.name for tensor in found}:
                raise IntegrityError(
                    f"manifest.json: component {name} has no {what} {min(needed - {t.name for t in found})}; export the bundle again"
                )
    return family.parse_constants(job.constants, job.options)
