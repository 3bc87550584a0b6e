"""Rechecks every manifest field against the checkpoint: resolves the job again and compares."""

from collections.abc import Iterable, Mapping
from math import isclose
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from voxport.bundle.errors import IntegrityError, RecipeError, UsageError
from voxport.bundle.manifest import MANIFEST, NOT_RUN, VOICE_KEY, Bundle, FileEntry, WeightError
from voxport.export.job import described_as, difference_path, make_job
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.targets.base import Target
from voxport.export.verify.comparison import Assertion

# Relative. The search computes w - q * s in float32, with |q| up to 127. A processor without fused
# multiply-add rounds q * s by up to 127 s * 2^-25 more, which is 1.3e-5 of the typical error of s / sqrt(12).
# Another order of sums adds less. The bar allows seven times as much.
WEIGHT_ERROR_BAR = 1e-4


def check_source(expected: dict[str, FileEntry], source: Source, is_default: bool) -> None:
    """Raises UsageError if the checkpoint is not the one that the bundle was made from."""
    found = source.files
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            where = "the embedded default" if is_default else str(source.folder)
            raise UsageError(
                f"checkpoint: {where}: {name} is not the file that the bundle was made from; "
                "give that checkpoint",
                field="checkpoint",
            )


def check_manifest(bundle: Bundle, source: Source, target: Target) -> Resolved:
    """Raises IntegrityError that names the first field that the checkpoint does not give.

    Returns the resolved request. Versions of tools and languages are not compared: another version, and one
    that has another model card, may verify a bundle.
    """
    job, manifest, where = bundle.job, bundle.manifest, bundle.folder / MANIFEST
    try:
        resolved = resolve(source, job.request)
        expected = make_job(resolved, target, job.source.name)
    except (RecipeError, UsageError) as error:
        raise IntegrityError(f"{where}: job.request: {error}; export the bundle again") from None
    expected = described_as(expected, job).model_copy(update={"tools": job.tools, "languages": job.languages})
    difference = difference_path(job.model_dump(mode="json"), expected.model_dump(mode="json"), "job")
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
    for name, rows in source.voices.items():
        _check_voice(bundle.folder / manifest.voices[name], rows.float().numpy())
    return resolved


def check_weight_errors(
    stored: Mapping[str, WeightError], measured: Mapping[str, WeightError]
) -> Iterable[Assertion]:
    """Compares the weight errors of a manifest with the errors of the quantised model, by graph."""
    for graph in sorted(stored.keys() | measured.keys()):
        found, expected = stored.get(graph), measured.get(graph)
        if found is None or expected is None or not _is_close(found, expected):
            advice = "export the bundle again"
            detail = f"{MANIFEST}: weight_errors.{graph}: found {found}, expected {expected}; {advice}"
            yield Assertion(f"weight error of {graph}", False, detail)


def _is_close(found: WeightError, expected: WeightError) -> bool:
    pairs = ((found.searched, expected.searched), (found.min_max, expected.min_max))
    return all(isclose(one, other, rel_tol=WEIGHT_ERROR_BAR) for one, other in pairs)


def _check_voice(path: Path, expected: np.ndarray) -> None:
    try:
        found = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise IntegrityError(
            f"{path}: not a readable safetensors file ({error}); export the bundle again"
        ) from None
    rows = found.get(VOICE_KEY)
    if len(found) != 1 or rows is None or rows.dtype != np.float32 or not np.array_equal(rows, expected):
        raise IntegrityError(f"{path}: not the voice of the checkpoint; export the bundle again")
