"""Builds one bundle: lowers graph by graph into a hidden folder, verifies there, and renames."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from safetensors.torch import save

import voxport.bundle
from voxport.bundle.errors import IntegrityError, UsageError, VerificationError
from voxport.bundle.manifest import (
    MANIFEST,
    README,
    REPORT,
    SCHEMA_VERSION,
    VOICE_KEY,
    Bundle,
    ExportJob,
    Manifest,
    WeightError,
    file_entry,
    read_manifest,
)
from voxport.bundle.progress import advance, progress
from voxport.export.card import bundle_card
from voxport.export.job import described_as, differences, graph_key
from voxport.export.memory import check_memory, free_memory, infrequent_garbage_collection, peak_memory
from voxport.export.model import Model
from voxport.export.resolve import Resolved, Source
from voxport.export.staging import RECORD, FinishedGraph, check_output, open_cache, staging
from voxport.export.targets.base import Target
from voxport.export.verify.checks import count_steps, verify, verify_graph
from voxport.export.verify.comparison import Result
from voxport.export.verify.eager import check_signatures
from voxport.export.verify.modes import DEFAULTS
from voxport.export.verify.result import VerificationResult, failures
from voxport.export.verify.vectors import write_vectors
from voxport.export.verify.worst_linears import rounding_advice
from voxport.runtime.families import read_constants

log = logging.getLogger(__name__)
FORMAT = Path(voxport.bundle.__file__).with_name("FORMAT.md")  # a copy is in each bundle
MAX_DIFFERENCES = 4  # in one line


@dataclass(frozen=True)
class OutputSettings:
    """The output folder of a bundle, and how to write it. `memory` is the estimated peak in bytes.

    With `keep_going`, all graphs are checked, even if one does not match eager.
    """

    folder: Path
    force: bool = False
    verify: bool = True
    keep_going: bool = False
    memory: int = 0


def build(resolved: Resolved, job: ExportJob, target: Target, output: OutputSettings) -> bool:
    """Exports one bundle. Returns False if the folder already holds this very bundle.

    Raises ExportError, VerificationError, UsageError or IntegrityError; then no finished bundle is left
    behind.
    """
    read_constants(job)  # a job that the runtime cannot read fails before anything is lowered
    check_output(output.folder)
    if not output.force and _is_current(output.folder, job, output.verify):
        return False
    unverified = "; an export without verification needs less" if output.verify else ""
    advice = f"choose a recipe of fewer bits{unverified}"
    check_memory(output.memory, f"{job.source.name} for {job.target}", advice)
    checks = count_steps(resolved, target, DEFAULTS) if output.verify else 0
    with staging(output.folder) as folder, progress(len(job.recipes) + checks, "steps"):
        model = Model(resolved, target.layout, job.compute_precision)
        log.info("%s: lowering to %s", job.source.name, job.target)
        finished, checked = _lower(model, target, job, folder, output)
        manifest = with_tokenizer_and_voices(_manifest_of(job, finished), resolved.source, folder)
        if output.verify:
            log.info("%s: verifying", job.source.name)
            result = verify(Bundle(folder, manifest), model, target, DEFAULTS, checked)
            _raise_failures(job, result, folder, partial(rounding_advice, model, target))
            verified = {"verification": result.stored(), "executed_by": target.runners[0]}
            manifest = manifest.model_copy(update=verified)
            write_vectors(Bundle(folder, manifest), model, target)
        shutil.copyfile(FORMAT, folder / FORMAT.name)
        _write_readme_and_manifest(bundle_card(manifest, resolved, target, folder), manifest, folder)
        (folder / RECORD).unlink()
    return True


def _lower(
    model: Model, target: Target, job: ExportJob, folder: Path, output: OutputSettings
) -> tuple[dict[str, FinishedGraph], list[Result]]:
    """The artifact of every graph, reused from an earlier run, and the results of checking each one.

    Raises VerificationError at the first graph that does not match eager, unless the export is to keep going.
    """
    cache, finished, checked = open_cache(folder), {}, []
    cache.retain(job.recipes)
    for name in job.recipes:
        key = graph_key(job, name)
        advance(0, f"{job.target}: {name}")
        found = cache.find(name, key)
        finished[name] = found or cache.make(name, key, partial(_lower_graph, model, target, name))
        free_memory()
        advance(1)
        source = "reused from an earlier export" if found else f"{peak_memory():.1f} GB of memory at the peak"
        log.info("  %s: %s, %s", name, _graph_summary(finished[name]), source)
        if not output.verify:
            model.release(name)
            continue
        part = Bundle(folder, _manifest_of(job, {name: finished[name]}))
        checked += verify_graph(part, model, target, name)
        model.pack(name)  # `verify` needs the module again
        free_memory()
        if not output.keep_going:  # fails before the next graph is lowered
            advise = partial(rounding_advice, model, target, name)
            _raise_failures(job, VerificationResult.of(checked), folder, advise)
    return finished, checked


def _manifest_of(job: ExportJob, graphs: Mapping[str, FinishedGraph]) -> Manifest:
    components = tuple(entry for entry in job.components if entry.graph in graphs)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        job=job.model_copy(update={"components": components}),
        files={name: entry for graph in graphs.values() for name, entry in graph.files.items()},
        tokenizer=(),
        voices={},
        weight_errors={name: graph.weight_error for name, graph in graphs.items() if graph.weight_error},
    )


def _lower_graph(model: Model, target: Target, name: str, folder: Path) -> WeightError | None:
    graph = model.graph(name)
    check_signatures(graph, target.layout, target.linear_kernel)
    free_memory()
    with infrequent_garbage_collection():
        target.lower(graph, folder)
    return model.weight_errors.get(name)


def _graph_summary(graph: FinishedGraph) -> str:
    size = f"{sum(entry.size for entry in graph.files.values()) / 1e6:.1f} MB"
    error = graph.weight_error
    return f"{size}, weight error {error.searched:.3%} (min-max: {error.min_max:.3%})" if error else size


def _raise_failures(
    job: ExportJob, result: VerificationResult, folder: Path, advise: Callable[[], str] = str
) -> None:
    """If a check failed, writes all results and raises VerificationError."""
    failed = failures(result)
    if not failed:
        return
    (folder / REPORT).write_text(result.as_json(), encoding="utf-8")
    for text in failed:
        log.error("  %s", text)
    raise VerificationError(
        f"{job.source.name} for {job.target} does not match eager in {len(failed)} checks, first "
        f"{failed[0]}; {folder} keeps {REPORT} and the lowered graphs for the next run; "
        f"use another recipe, or remove that folder to lower again{advise()}"
    )


def _is_current(folder: Path, job: ExportJob, verified: bool) -> bool:
    """Whether the folder holds the bundle of this job, checked file by file.

    The wording of the request is ignored. Raises UsageError if the folder holds another bundle.
    """
    if not (folder / MANIFEST).exists():
        return False
    try:
        found = read_manifest(folder)
        is_equal = described_as(found.job, job) == job
        if is_equal:
            Bundle(folder).check_hashes()
    except IntegrityError as error:
        raise IntegrityError(f"{error} (a forced export replaces it)") from None
    if is_equal:
        return not verified or found.verification.status == "passed"  # otherwise it is exported again
    _refuse_another(folder, found.job, job)


def check_calibration_there(folder: Path, job: ExportJob, chooses: bool) -> None:
    """Before a calibration: whether the bundle of the folder, if any, may be this one when it is calibrated.

    `job` is without statistics, but for the hash of their data. `chooses`: they choose recipes as well.
    Raises UsageError or IntegrityError.
    """
    if not (folder / MANIFEST).exists():
        return
    found = read_manifest(folder).job
    known: dict[str, object] = {"calibration": found.calibration}
    if chooses:
        known |= {"request": found.request, "recipes": found.recipes, "components": found.components}
    expected = job.model_copy(update=known)
    if described_as(found, expected) != expected:
        _refuse_another(folder, found, expected)


def _refuse_another(folder: Path, found: ExportJob, job: ExportJob) -> NoReturn:
    different = "; ".join(differences(found, job)[:MAX_DIFFERENCES])
    raise UsageError(
        f"{folder}: holds another bundle: {different}; use another output folder, or force the export to "
        "replace it",
        field="out",
    )


def with_tokenizer_and_voices(manifest: Manifest, source: Source, folder: Path) -> Manifest:
    """Copies the tokenizer files and writes each voice: a safetensors file with the tensor `embedding`,
    float32 [N, dim].
    """
    for name in source.tokenizer_files:
        shutil.copyfile(source.folder / name, folder / name)
    voices = {}
    for name, rows in source.voices.items():
        voices[name] = f"voices/{name}.safetensors"
        (folder / "voices").mkdir(exist_ok=True)
        # not save_file, whose error on a full disk does not say so
        (folder / voices[name]).write_bytes(save({VOICE_KEY: rows.float().contiguous()}))
    written = (*source.tokenizer_files, *voices.values())
    files = manifest.files | {name: file_entry(folder / name) for name in written}
    return manifest.model_copy(update={"tokenizer": source.tokenizer_files, "voices": voices, "files": files})


def _write_readme_and_manifest(readme: str, manifest: Manifest, folder: Path) -> None:
    """The manifest has the hashes of README and format."""
    (folder / README).write_text(readme, encoding="utf-8")
    files = manifest.files | {name: file_entry(folder / name) for name in (README, FORMAT.name)}
    manifest = manifest.model_copy(update={"files": dict(sorted(files.items()))})
    content = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(content + "\n", encoding="utf-8")
