"""Converts a checkpoint folder: opens it, plans, and writes a new folder that gets its name when complete."""

import hashlib
import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.files import files_below
from voxport.bundle.manifest import README, file_entry
from voxport.bundle.progress import advance, progress
from voxport.export.code_key import source_key
from voxport.export.conversion.files import (
    check_files,
    conversion_card,
    write_files,
    write_index,
    write_weights,
)
from voxport.export.conversion.outputs import Conversion, Output
from voxport.export.conversion.plan import NO_GROUP, Plan, make_plan, shards
from voxport.export.output_folder import staging
from voxport.export.resume import RECORD, ResumeCache
from voxport.model.checkpoint_layout import RANDOM_WEIGHTS
from voxport.model.foreign import foreign_format_named
from voxport.model.graph import GraphSpec
from voxport.model.inspection import open_convertible
from voxport.model.mlx.tensor_layouts import LAYOUT_KEY, MLX_AUDIO
from voxport.model.other_weights import check_other_weights
from voxport.model.stored_weights import PACKED, RECIPE_KEY, StoredWeights
from voxport.quantize.recipe import Recipe, Rule, find_recipe, with_min_bits

HASHES = "SHA256SUMS"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    `floats`: why a linear or table stays a float beside integers, by MLX path.
    `dropped`: buffers that a model computes, by their names in the source.
    """

    out: Path
    tensors: int
    size: int
    floats: dict[str, str]
    dropped: tuple[str, ...]


def convert(folder: Path, out: Path, conversion: Conversion, weights: Collection[str] = ()) -> Converted:
    """Writes `folder` in another layout or precision to `out`, which must be free. `weights` names files to
    read in place of the usual ones.

    Raises UsageError, CheckpointError or ExportError. After an interruption and on a full disk, the finished
    files stay in a hidden folder beside `out`, and the next run continues with them. After another error
    nothing is left.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; choose another one")
    with foreign_format_named(folder):
        family = open_convertible(folder, weights)
        config = family.layout.load_config(folder)
        source = StoredWeights(folder, family, config)
    for note in check_other_weights(folder, family.layout, family.mlx.published):
        log.info("%s: %s", folder, note)
    conversion = replace(
        conversion,
        recipe=_with_family_rules(conversion.recipe, family.graphs(config, family.options())),
        layout=conversion.layout or ("mlx" if source.is_for_modules else MLX_AUDIO),
    )
    plan = make_plan(family, config, source, conversion)
    check_files(folder, family, config)
    if not_storable := [path for path, reason in plan.floats.items() if reason == NO_GROUP]:
        message = "%d layers stay floats, because %s, first %s; %d layers become integers"
        log.warning(message, len(not_storable), NO_GROUP, not_storable[0], len(plan.integers))
    for name in source.computed:
        log.info("%s: dropped, a model computes it", name)
    with staging(out) as staged, progress(plan.size / 1e6, "MB"):
        _write_weights(plan, staged)
        write_files(plan, staged)
        (staged / README).write_text(conversion_card(plan), encoding="utf-8")
        names = sorted(set(files_below(staged)) - {RECORD})
        sums = "".join(f"{file_entry(staged / name).sha256}  {name}\n" for name in names)
        (staged / HASHES).write_text(sums, encoding="utf-8")
        (staged / RECORD).unlink()  # last: after an interruption its files are used again
    tensors = sum(len(output.entries) for output in plan.outputs)
    return Converted(out, tensors, plan.size, plan.floats, source.computed)


def _write_weights(plan: Plan, out: Path) -> None:
    """The files of weights below `out`. A file of an earlier run is kept. An index is written last."""
    cache = ResumeCache(out)
    hashes = sorted(file_entry(file.path).sha256 for file in plan.source.files)
    for path, outputs in plan.files.items():
        metadata, parts = _metadata(plan, outputs), shards(path, outputs)
        for name, part in parts.items():
            key, entry = _key(hashes, part, metadata, plan.conversion), name.replace("/", ".")
            if cache.find(entry, key):
                log.info("%s: as in an earlier run", name)
                advance(sum(output.size for output in part) / 1e6, name)
            else:
                cache.make(entry, key, partial(_write_file, name, part, metadata))
        if len(parts) > 1:
            write_index(out / path, parts)


def _write_file(name: str, outputs: list[Output], metadata: dict[str, str], folder: Path) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_weights(folder / name, outputs, metadata)


def _with_family_rules(recipe: Recipe, graphs: Iterable[GraphSpec]) -> Recipe:
    """The recipe as an export uses it: what graphs keep as floats, and the bits that they need at least."""
    kept, least = list[Rule](), list[Rule]()
    for graph in graphs:
        kept += [Rule(path, None, None) for path in graph.keep_float]
        found = find_recipe(with_min_bits(recipe.name, graph.min_bits))
        if found.name != recipe.name:
            least += [Rule(f"{prefix}.*", found.linears, found.tables) for prefix in graph.weights]
    return recipe.with_rules((*kept, *least))


def _metadata(plan: Plan, outputs: list[Output]) -> dict[str, str]:
    """The metadata of a weight file and of its shards."""
    to_mlx = plan.conversion.to == "mlx"
    tags = {"format": "mlx" if to_mlx else "pt", LAYOUT_KEY: plan.conversion.tag}
    if plan.recipe and any(entry.dtype == PACKED for output in outputs for entry in output.entries):
        tags[RECIPE_KEY] = plan.recipe
    return tags | ({RANDOM_WEIGHTS: "voxport synth"} if plan.source.is_random else {})


def _key(hashes: list[str], outputs: list[Output], metadata: object, conversion: Conversion) -> str:
    """Hash of everything that decides a file of weights."""
    content = [
        hashes,
        conversion.to,
        str(conversion.dtype),
        conversion.recipe.to_entry().model_dump(mode="json"),
        [output.entries for output in outputs],
        metadata,
        source_key("export/conversion", "model", "quantize"),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
