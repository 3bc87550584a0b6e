"""Makes a bundle: lower graph by graph into a hidden folder, verify there, and only then give it its name."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save

from bundle.bundle import (
    MANIFEST,
    SCHEMA_VERSION,
    Bundle,
    FileEntry,
    Manifest,
    Verification,
    file_entry,
    read_manifest,
)
from bundle.bundle import Source as SourceEntry
from bundle.errors import IntegrityError, OutputExists, UsageError, VerificationError
from export.bundle_readme import bundle_readme
from export.manifest import NOT_RUN, TOKENIZER, component_entry, recipe_entry, source_files, tool_versions
from export.memory import check_memory, free_memory, peak_memory
from export.resume import RECORD, Part, Parts, key_of
from export.source import Model, Plan, Source, graph_weights
from export.staging import staging
from export.targets.base import EntryPoint, Lowering
from export.verify.verify import failures, verify
from runtime.families import open_family

log = logging.getLogger(__name__)
REPORT = "verify.json"
NOT_PART = (MANIFEST, REPORT, RECORD)  # a bundle's files, less those that are written about it


@dataclass(frozen=True)
class Request:
    """One bundle to make; `memory` is what it is estimated to take, in bytes."""

    name: str
    target: str
    out: Path
    plan: Plan
    licence: str
    force: bool = False
    check: bool = True
    memory: int = 0


def build(source: Source, lowering: Lowering, request: Request) -> tuple[Path, bool]:
    """Exports one bundle and returns its folder, and whether it was made anew.

    Raises ExportError, VerificationError or OutputExists; then nothing is left that looks finished.
    """
    _check_tokenizer(source)
    wanted = _identity(source, lowering, request)
    if request.out.exists() and _is_current(request, wanted):
        return request.out, False
    check_memory(request.memory, f"{request.name} for {request.target}", request.check)
    with staging(request.out) as folder:
        model = Model(source, request.plan, lowering.layout, lowering.halves)
        log.info("%s: lowering to %s", request.name, request.target)
        lowered = _lower(lowering, model, wanted, Parts(folder), request.check)
        _write_parts(source, folder)
        manifest = _manifest(source, lowering, request, lowered, wanted, folder)
        (folder / "README.md").write_text(
            bundle_readme(manifest, source.family.calls(manifest.constants, manifest.switches)),
            encoding="utf-8",
        )
        manifest = manifest.model_copy(update={"files": _files(folder)})
        _write_manifest(folder, manifest)
        if request.check:
            log.info("%s: verifying", request.name)
            result = verify(Bundle(folder), source, request.plan, lowering, model=model)
            if result["status"] != "passed":
                raise VerificationError(
                    f"{request.name} for {request.target} does not match eager: "
                    + "; ".join(failures(result)[:3])
                )
            verified = {"verification": Verification.model_validate(result), "numerics": lowering.runners[0]}
            _write_manifest(folder, manifest.model_copy(update=verified))
        (folder / RECORD).unlink()
    return request.out, True


def _check_tokenizer(source: Source) -> None:
    """A bundle whose tokenizer cannot be read would be of no use to text. Raises IntegrityError."""
    path = source.folder / TOKENIZER
    if path.is_file():
        open_family(source.family.name).open_tokenizer(path)


def _lower(
    lowering: Lowering, model: Model, wanted: dict[str, Any], parts: Parts, keep: bool
) -> dict[str, Part]:
    """Every graph's artifact, those of an earlier run where they are still what would be made. `keep` weights, for verification."""
    lowered = {}
    for name, recipe in wanted["recipe"]["graphs"].items():
        key = key_of({**wanted, "recipe": recipe, "graph": name})
        found = parts.find(name, key)
        lowered[name] = found or parts.make(name, key, partial(_lower_graph, lowering, model, name))
        if keep:
            model.pack(name)
        else:
            model.release(name)
        free_memory()
        log.info(
            "  %s: %s, %s",
            name,
            _told(lowered[name]),
            "kept from an earlier run" if found else f"{peak_memory():.1f} GB of memory at the peak",
        )
    return lowered


def _lower_graph(
    lowering: Lowering, model: Model, name: str, folder: Path
) -> tuple[dict[str, EntryPoint], dict[str, float]]:
    graph = model.graph(name)
    free_memory()
    return lowering.lower(graph, folder), model.reports[name]


def _told(part: Part) -> str:
    size = f"{part.size / 1e6:.1f} MB"
    return (
        f"{size}, weight error {part.report['weight_error']:.3%} (min-max: {part.report['weight_error_min_max']:.3%})"
        if part.report
        else size
    )


def _identity(source: Source, lowering: Lowering, request: Request) -> dict[str, Any]:
    """What must agree for an existing bundle to be this one."""
    return {
        "schema_version": SCHEMA_VERSION,
        "family": source.family.name,
        "target": request.target,
        "switches": source.switches(request.plan).model_dump(),
        "source": {
            "name": request.name,
            "files": {name: entry.model_dump() for name, entry in source_files(source.folder).items()},
        },
        "recipe": recipe_entry(source, request.plan).model_dump(),
        "cache_length": source.rows(request.plan),
        "compute_precision": lowering.compute_precision,
        "tools": tool_versions(lowering.packages),
    }


def _is_current(request: Request, wanted: dict[str, Any]) -> bool:
    """True for this very bundle, checked file by file. Raises OutputExists where something else is in the way."""
    if request.force:
        return False
    try:
        found = read_manifest(request.out).model_dump(mode="json")
    except (UsageError, IntegrityError):
        found = None
    if found is not None and all(
        found[key] == json.loads(json.dumps(value)) for key, value in wanted.items()
    ):
        try:
            Bundle(request.out).check_hashes()
        except IntegrityError as error:
            raise IntegrityError(f"{error} (--force replaces it)") from None
        if not request.check or found["verification"]["status"] == "passed":
            return True
        foreign = [name for name in _files_below(request.out) if name not in found["files"]]
        if not foreign:
            return False  # the same, unverified: made anew
        raise OutputExists(
            f"{request.out}: holds {foreign[0]}, which is not the bundle's; move it, or --force to replace the folder"
        )
    if request.out.is_dir() and not any(request.out.iterdir()):
        return False
    what = "another bundle" if found is not None else "something that is no bundle"
    raise OutputExists(f"{request.out}: holds {what}; give another --out, or --force to replace it")


def _write_parts(source: Source, folder: Path) -> None:
    """Tokenizer as published; voices as safetensors with one key, `embedding`, float32 (bfloat16 fits in it)."""
    if (source.folder / TOKENIZER).is_file():
        shutil.copyfile(source.folder / TOKENIZER, folder / TOKENIZER)
    if source.voices:
        (folder / "voices").mkdir()
    for name, rows in source.voices.items():
        # not save_file, whose error on a full disk does not say so
        (folder / "voices" / f"{name}.safetensors").write_bytes(
            save({"embedding": rows.float().contiguous()})
        )


def _files(folder: Path) -> dict[str, FileEntry]:
    return {name: file_entry(folder / name) for name in _files_below(folder)}


def _files_below(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in names if name not in NOT_PART]


def _manifest(
    source: Source,
    lowering: Lowering,
    request: Request,
    lowered: dict[str, Part],
    wanted: dict[str, Any],
    folder: Path,
) -> Manifest:
    recipes, root, family = source.recipes(request.plan), source.root(), source.family
    components = []
    for component in source.describe(request.plan, lowering.layout):
        graph, recipe = component.graph, recipes[component.graph]
        weights = graph_weights(root, family, graph, recipe, 2 if lowering.halves else 4)
        report = {
            "bits_per_weight": round(8 * weights.held / weights.count, 2),
            "weight_bytes": int(weights.read),
            **lowered[graph].report,
        }
        components.append(
            component_entry(
                component, lowered[graph].entries[component.name], recipe.name, report, lowering.most_streams
            )
        )
    return Manifest(
        **{key: value for key, value in wanted.items() if key not in ("source", "recipe")},
        source=SourceEntry.model_validate(wanted["source"]),
        recipe=recipe_entry(source, request.plan),
        constants=source.family.constants(source.config, source.switches(request.plan)),
        components=tuple(components),
        files={},
        tokenizer=TOKENIZER if (folder / TOKENIZER).is_file() else None,
        voices={name: f"voices/{name}.safetensors" for name in source.voices},
        licence=request.licence,
        numerics=NOT_RUN,
        verification=Verification(status="unverified", rows=(), reports={}),
    )


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(
        json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
