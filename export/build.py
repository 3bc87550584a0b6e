"""Builds one bundle: lowers graph by graph into a hidden folder, verifies there, and renames."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safetensors.torch import save

from voxport.bundle.errors import IntegrityError, UsageError, VerificationError, VoxportError
from voxport.bundle.files import files_below
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
from voxport.export.bundle_readme import bundle_readme
from voxport.export.job import graph_key
from voxport.export.memory import check_memory, free_memory, infrequent_garbage_collection, peak_memory
from voxport.export.model import Export
from voxport.export.model_card import model_card
from voxport.export.naming import differences
from voxport.export.output_folder import check_output, staging
from voxport.export.resolve import Resolved, Source
from voxport.export.resume import RECORD, FinishedGraph, ResumeCache
from voxport.export.targets.base import Target
from voxport.export.verify.comparison import Report, Result
from voxport.export.verify.eager import check_signatures
from voxport.export.verify.modes import DEFAULTS
from voxport.export.verify.report import VerificationResult, failures
from voxport.export.verify.run import count_steps, verify, verify_graph
from voxport.runtime.families import read_constants

log = logging.getLogger(__name__)
MAX_DIFFERENCES = 4  # in one line
# Files about the bundle. An interrupted export leaves RECORD.
NOT_ARTIFACTS = (MANIFEST, REPORT, RECORD)


@dataclass(frozen=True)
class OutputSettings:
    """The output folder of a bundle, and how to write it. `memory` is the estimated peak in bytes.

    With `keep_going`, all graphs are checked, even if one does not match eager. `page` is the file for the
    page of charts, which is also written where the bundle does not match eager. `evaluate` measures the
    quality of a bundle that matches, for the report.
    """

    folder: Path
    force: bool = False
    verify: bool = True
    keep_going: bool = False
    memory: int = 0
    page: Path | None = None
    evaluate: Callable[[Bundle], Report] | None = None


def build(resolved: Resolved, job: ExportJob, target: Target, output: OutputSettings) -> bool:
    """Exports one bundle. Returns False where the folder already holds this very bundle.

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
        export = Export(resolved, target, job)
        log.info("%s: lowering to %s", job.source.name, job.target)
        finished, checked = _lower(export, folder, output)
        manifest = _write_bundle(export, finished, folder)
        if output.verify:
            _verify(export, manifest, folder, checked, output)
        (folder / RECORD).unlink()
    return True


def _lower(
    export: Export, folder: Path, output: OutputSettings
) -> tuple[dict[str, FinishedGraph], list[Result]]:
    """The artifact of every graph, reused from an earlier run, and the results of checking each one.

    Raises VerificationError at the first graph that does not match eager, unless the export is to keep going.
    """
    job, model = export.job, export.model
    cache, finished, checked = ResumeCache(folder), {}, []
    for name in job.recipes:
        key = graph_key(job, name)
        advance(0, f"{job.target}: {name}")
        found = cache.find(name, key)
        finished[name] = found or cache.make(name, key, partial(_lower_graph, export, name))
        free_memory()
        advance(1)
        source = "reused from an earlier export" if found else f"{peak_memory():.1f} GB of memory at the peak"
        log.info("  %s: %s, %s", name, _graph_summary(finished[name]), source)
        if not output.verify:
            model.release(name)
            continue
        checked += verify_graph(_part_of_bundle(export, {name: finished[name]}, folder), export, name)
        model.pack(name)  # `_verify` needs the module again
        free_memory()
        result = VerificationResult.of(checked)
        if not (output.keep_going or result.passed):  # before the next graph is lowered
            try:
                _report_failures(job, result, folder)
            finally:
                _write_page(export, _part_of_bundle(export, finished, folder), result, output)
    return finished, checked


def _part_of_bundle(export: Export, graphs: Mapping[str, FinishedGraph], folder: Path) -> Bundle:
    """A bundle of these graphs alone, whose manifest is not written."""
    components = tuple(entry for entry in export.job.components if entry.graph in graphs)
    part = Manifest(
        schema_version=SCHEMA_VERSION,
        job=export.job.model_copy(update={"components": components}),
        files={name: entry for graph in graphs.values() for name, entry in graph.files.items()},
        tokenizer=(),
        voices={},
        weight_errors={},
    )
    return Bundle(folder, part)


def _lower_graph(export: Export, name: str, folder: Path) -> WeightError | None:
    target, graph = export.target, export.model.graph(name)
    check_signatures(graph, target.layout, target.linear_kernel)
    free_memory()
    with infrequent_garbage_collection():
        target.lower(graph, folder)
    return export.model.weight_errors.get(name)


def _graph_summary(graph: FinishedGraph) -> str:
    size = f"{sum(entry.size for entry in graph.files.values()) / 1e6:.1f} MB"
    error = graph.weight_error
    return f"{size}, weight error {error.searched:.3%} (min-max: {error.min_max:.3%})" if error else size


def _write_bundle(export: Export, finished: dict[str, FinishedGraph], folder: Path) -> Manifest:
    """Writes everything but the artifacts; the manifest says `unverified`."""
    source = export.resolved.source
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        job=export.job,
        files={},
        tokenizer=source.tokenizer_files,
        voices=_write_tokenizer_and_voices(source, folder),
        weight_errors={name: graph.weight_error for name, graph in finished.items() if graph.weight_error},
    )
    files = {name: file_entry(folder / name) for name in _artifact_names(folder)}
    return _write_readme_and_manifest(export, manifest.model_copy(update={"files": files}), folder)


def _write_readme_and_manifest(export: Export, manifest: Manifest, folder: Path) -> Manifest:
    """Writes the README and the manifest, which has the hash of the README. Returns that manifest."""
    job, source = export.job, export.resolved.source
    body = bundle_readme(manifest, source.family.calls(job.constants, job.options), export.target)
    (folder / README).write_text(model_card(manifest, source) + body, encoding="utf-8")
    files = {**manifest.files, README: file_entry(folder / README)}
    manifest = manifest.model_copy(update={"files": dict(sorted(files.items()))})
    _write_manifest(folder, manifest)
    return manifest


def _verify(
    export: Export, manifest: Manifest, folder: Path, checked: Sequence[Result], output: OutputSettings
) -> None:
    """Writes the result into the manifest and the README.

    Raises VerificationError, after the report was written.
    """
    log.info("%s: verifying", manifest.job.source.name)
    result = verify(Bundle(folder), export, DEFAULTS, checked)
    if output.evaluate and result.passed:
        try:
            result = result.with_report(output.evaluate(Bundle(folder)))
        except (VoxportError, OSError) as error:  # the verified bundle stays
            log.error("not evaluated: %s", error)
    try:
        _report_failures(manifest.job, result, folder)
    finally:
        _write_page(export, Bundle(folder), result, output)
    verified = {"verification": result.stored(), "executed_by": export.target.runners[0]}
    _write_readme_and_manifest(export, manifest.model_copy(update=verified), folder)


def _write_page(export: Export, bundle: Bundle, result: VerificationResult, output: OutputSettings) -> None:
    """Writes the page of the report where it was asked for."""
    if output.page:
        from voxport.export.report.page import write_page  # matplotlib takes a second

        write_page(output.page, bundle, result, export.model.layer_errors)


def _report_failures(job: ExportJob, result: VerificationResult, folder: Path) -> None:
    """Writes the report and raises VerificationError if a check failed."""
    failed = failures(result)
    if not failed:
        return
    (folder / REPORT).write_text(result.report(), encoding="utf-8")
    for text in failed:
        log.error("  %s", text)
    raise VerificationError(
        f"{job.source.name} for {job.target} does not match eager in {len(failed)} checks, first "
        f"{failed[0]}; {folder} keeps {REPORT} and the lowered graphs for the next run; "
        "use another recipe, or remove that folder to lower again"
    )


def _is_current(folder: Path, job: ExportJob, verified: bool) -> bool:
    """Whether the folder holds the bundle of this job, checked file by file.

    The wording of the request is ignored. Raises UsageError if the folder holds another bundle.
    """
    if not (folder / MANIFEST).exists():
        return False
    try:
        found = read_manifest(folder)
    except IntegrityError as error:
        raise IntegrityError(f"{error} (a forced export replaces it)") from None
    if found.job.model_copy(update={"request": job.request}) == job:
        try:
            Bundle(folder).check_hashes()
        except IntegrityError as error:
            raise IntegrityError(f"{error} (a forced export replaces it)") from None
        return not verified or found.verification.status == "passed"  # otherwise it is exported again
    different = "; ".join(differences(found.job, job)[:MAX_DIFFERENCES])
    raise UsageError(
        f"{folder}: holds another bundle: {different}; use another output folder, or force the export to "
        "replace it",
        field="force",
    )


def _write_tokenizer_and_voices(source: Source, folder: Path) -> dict[str, str]:
    """Copies the tokenizer files and writes each voice. Returns the paths of the voices.

    A voice is a safetensors file with the tensor `embedding`, float32 [N, dim].
    """
    for name in source.tokenizer_files:
        shutil.copyfile(source.folder / name, folder / name)
    paths = {}
    for name, rows in source.voices.items():
        paths[name] = f"voices/{name}.safetensors"
        (folder / "voices").mkdir(exist_ok=True)
        # not save_file, whose error on a full disk does not say so
        (folder / paths[name]).write_bytes(save({VOICE_KEY: rows.float().contiguous()}))
    return paths


def _artifact_names(folder: Path) -> list[str]:
    return [name for name in files_below(folder) if name not in NOT_ARTIFACTS]


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    content = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(content + "\n", encoding="utf-8")
