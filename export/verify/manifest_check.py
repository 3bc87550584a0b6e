"""Rechecks every manifest field against the checkpoint: the job is resolved again and compared."""

from __future__ import annotations

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import IntegrityError, RecipeError, UsageError
from bundle.files import FileEntry
from bundle.manifest import MANIFEST, NOT_RUN
from export.job import first_difference, resolve
from export.source import Source
from export.targets.base import Target
from runtime.families import read_constants
from runtime.families.voxtral_tts.voices import load_voice


def check_source(expected: dict[str, FileEntry], source: Source, is_default: bool) -> None:
    """Raises UsageError where the checkpoint is not the one that the bundle was made from."""
    found = source.files
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            where = "the embedded default" if is_default else str(source.folder)
            raise UsageError(
                f"{where}: {name} is not the file that the bundle was made from; give that checkpoint with --checkpoint"
            )


def check_manifest(bundle: Bundle, source: Source, target: Target) -> None:
    """Raises IntegrityError that names the first field that the checkpoint does not give.

    Versions of tools are not compared: another version may verify a bundle.
    """
    job, manifest, where = bundle.job, bundle.manifest, bundle.folder / MANIFEST
    try:
        expected = resolve(source, job.request, target, job.source.name, job.licence)
    except (RecipeError, UsageError) as error:
        raise IntegrityError(f"{where}: job.request: {error}; export the bundle again") from None
    expected = expected.model_copy(update={"tools": job.tools})
    difference = first_difference(job.model_dump(mode="json"), expected.model_dump(mode="json"), "job")
    checks = {
        difference or "job": difference is None,
        "executed_by": manifest.executed_by in (NOT_RUN, *target.runners),
        "voices": sorted(manifest.voices) == sorted(source.voices),
        "tokenizer": manifest.tokenizer == source.tokenizer_files
        and all(manifest.files[name] == source.files[name] for name in manifest.tokenizer),
    }
    for field, matches in checks.items():
        if not matches:
            raise IntegrityError(f"{where}: {field}: not what the checkpoint gives; export the bundle again")
    _check_voices(bundle, source)


def _check_voices(bundle: Bundle, source: Source) -> None:
    dim = read_constants(bundle.job).dim
    for name, rows in source.voices.items():
        if not np.array_equal(load_voice(bundle, name, dim), rows.float().numpy()):
            path = bundle.folder / bundle.manifest.voices[name]
            raise IntegrityError(f"{path}: not the voice of the checkpoint; export the bundle again")
