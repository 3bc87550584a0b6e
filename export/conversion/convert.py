"""Converts a checkpoint folder: opens it, plans, and writes a new folder that gets its name when complete."""

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bundle.errors import UsageError
from bundle.files import files_below
from bundle.manifest import VOICE_KEY, file_entry
from bundle.progress import Progress, advance
from export.conversion.card import conversion_card
from export.conversion.outputs import Conversion, Output
from export.conversion.plan import Plan, make_plan, shards
from export.conversion.write import write_index, write_weights
from export.job import code_hash
from export.staging import RECORD, ResumeCache, staging
from model.checkpoint_format import RANDOM_WEIGHTS
from model.families import family_of, open_family
from model.family import Config, Family
from model.layouts import LAYOUT_KEY
from model.mlx import CONFIG, MODEL_TYPE, QUANTIZATION, read_mlx_config, without_integers
from model.stored_weights import PACKED, RECIPE_KEY, StoredWeights, weight_files
from quantize.recipe import Recipe, Rule, at_least_8_bits, find_recipe

SUMS = "SHA256SUMS"
README = "README.md"
DEFAULT_GROUP, DEFAULT_BITS = 32, 4  # of `quantization`, where no layer has integers of its own
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    `floats`: why a layer that the recipe names stays a float, by MLX path.
    `dropped`: buffers that a model computes, by their names in the source.
    """

    out: Path
    tensors: int
    size: int
    floats: dict[str, str]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class _Job:
    """A conversion that is about to be written."""

    folder: Path
    family: Family
    config: Config
    source: StoredWeights
    conversion: Conversion
    plan: Plan


def convert(folder: Path, out: Path, conversion: Conversion) -> Converted:
    """Writes `folder` in another layout or precision to `out`, which must be free.

    Raises UsageError, CheckpointError or ExportError. After an interruption and on a full disk, the finished
    files stay in a hidden folder beside `out`, and the next run continues with them. After another error
    nothing is left.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; choose another one")
    family = open_family(family_of(folder))
    config = family.config_of(folder)
    source = StoredWeights(folder, family, config)
    conversion = replace(conversion, recipe=_with_family_rules(conversion.recipe, family))
    plan = make_plan(source, family, conversion, family.build_root(config))
    for name in source.computed:
        log.info("%s: dropped, a model computes it", name)
    size = sum(output.size for outputs in plan.files.values() for output in outputs)
    job = _Job(folder, family, config, source, conversion, plan)
    with staging(out) as partial, Progress(size / 1e6, "MB"):
        _write_weights(job, partial)
        _write_files(job, partial)
        card = conversion_card(family, config, source, conversion, plan)
        (partial / README).write_text(card, encoding="utf-8")
        (partial / RECORD).unlink()
        names = sorted(files_below(partial))
        sums = "".join(f"{file_entry(partial / name).sha256}  {name}\n" for name in names)
        (partial / SUMS).write_text(sums, encoding="utf-8")
    tensors = sum(len(output.entries) for outputs in plan.files.values() for output in outputs)
    return Converted(out, tensors, size, plan.floats, source.computed)


def _write_weights(job: _Job, out: Path) -> None:
    """The files of weights below `out`. A file of an earlier run is kept. An index is written last."""
    cache, hashes = ResumeCache(out), _hashes(job.folder, job.family)
    for path, outputs in job.plan.files.items():
        parts = shards(path, outputs)
        for name, part in parts.items():
            metadata = _metadata(job, outputs)

            def write(
                temporary: Path,
                name: str = name,
                part: list[Output] = part,
                metadata: dict[str, str] = metadata,
            ) -> None:
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                write_weights(temporary / name, part, metadata)

            key, entry = _key(hashes, part, metadata, job.conversion), name.replace("/", ".")
            if cache.find(entry, key):
                log.info("%s: as in an earlier run", name)
                advance(sum(output.size for output in part) / 1e6, name)
            else:
                cache.make(entry, key, write)
        if len(parts) > 1:
            write_index(out / path, parts)


def _with_family_rules(recipe: Recipe, family: Family) -> Recipe:
    """The recipe as an export uses it: what the family keeps as floats, and graphs of at least 8 bits."""
    least = find_recipe(at_least_8_bits(recipe.name))
    prefixes = (prefix for graph in family.eight_bits for prefix in family.weights_of_graph[graph])
    rules = [Rule(path, None, None) for path in family.high_precision]
    return recipe.with_rules(
        (*rules, *(Rule(f"{prefix}.*", least.linears, least.tables) for prefix in prefixes))
    )


def _metadata(job: _Job, outputs: list[Output]) -> dict[str, str]:
    """Of a weight file and of its shards."""
    to_mlx, plan = job.conversion.to == "mlx", job.plan
    tags = {"format": "mlx" if to_mlx else "pt", LAYOUT_KEY: job.conversion.layout if to_mlx else "pytorch"}
    if plan.recipe and any(entry.dtype == PACKED for output in outputs for entry in output.entries):
        tags[RECIPE_KEY] = plan.recipe
    return tags | ({RANDOM_WEIGHTS: "voxport synth"} if job.source.is_random else {})


def _hashes(folder: Path, family: Family) -> dict[str, str]:
    """SHA-256 of every weight file."""
    return {str(file.path): file_entry(file.path).sha256 for file in weight_files(folder, family)}


def _key(hashes: dict[str, str], outputs: list[Output], metadata: object, conversion: Conversion) -> str:
    """Hash of everything that decides a file of weights."""
    content = [
        sorted(hashes.values()),
        conversion.to,
        str(conversion.dtype),
        conversion.recipe.to_dict(),
        [output.entries for output in outputs],
        metadata,
        code_hash(),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _write_files(job: _Job, out: Path) -> None:
    """Configuration, tokenizer and voices."""
    folder, family, conversion = job.folder, job.family, job.conversion
    copied = dict.fromkeys((*family.mlx.copied, *family.format.config_files(folder)))
    for name in copied:
        if (folder / name).is_file():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, out / name)
    published = family.mlx.published_config
    if published and not (out / published).exists():
        _write_json(out / published, family.mlx.restored(read_mlx_config(folder)))
    if conversion.to == "mlx":
        _write_json(out / CONFIG, _mlx_config(out, family, job.plan))
    elif CONFIG in copied:
        _write_json(out / CONFIG, without_integers(read_mlx_config(folder)))
    for name in family.format.voice_files(folder):
        target = out / Path(name).with_suffix(".safetensors" if conversion.to == "mlx" else ".pt")
        target.parent.mkdir(exist_ok=True)
        rows = family.format.voice(folder / name, job.config)
        if conversion.to == "mlx":
            save_file({VOICE_KEY: rows.contiguous()}, target)
        else:
            torch.save(rows.contiguous(), target)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _mlx_config(out: Path, family: Family, plan: Plan) -> dict[str, Any]:
    """The contents of config.json. `quantization` has an entry for every layer with integers, and `false` for
    those that stay floats.
    """
    content = without_integers(family.mlx.config(out)) | {MODEL_TYPE: family.mlx.model_type}
    if not plan.integers:
        return content
    layers: dict[str, Any] = {
        path: {"group_size": group, "bits": bits, "mode": "affine"}
        for path, (bits, group) in sorted(plan.integers.items())
    }
    layers |= {path: False for path in sorted(plan.floats)}
    pairs = list(plan.integers.values())
    bits, group = max(set(pairs), key=pairs.count)
    # mlx-audio leaves out layers whose inputs this number does not divide
    group = min(group, *(size for _, size in pairs))
    return content | {QUANTIZATION: {"group_size": group, "bits": bits, "mode": "affine", **layers}}
