"""Converts a checkpoint folder: opens it, plans, and writes a new folder that gets its name when complete."""

import json
import logging
import shutil
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import save

from voxport.bundle.errors import CheckpointError, UsageError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import README, VOICE_KEY
from voxport.bundle.progress import advance, progress
from voxport.export.card import front_matter
from voxport.export.conversion.outputs import STORED, Conversion, Output
from voxport.export.conversion.plan import NO_GROUP, Plan, make_plan
from voxport.export.staging import staging
from voxport.model.checkpoint_layout import INDEX_SUFFIX, RANDOM_WEIGHTS, not_json
from voxport.model.config import Config
from voxport.model.download import unfinished
from voxport.model.family import Family
from voxport.model.foreign import foreign_format_named
from voxport.model.graph import GraphSpec
from voxport.model.inspection import open_family_of
from voxport.model.mlx.layout import CONFIG, MODEL_TYPE, QUANTIZATION, read_mlx_config, without_integers
from voxport.model.mlx.tensor_layouts import LAYOUT_KEY, MLX_AUDIO
from voxport.model.other_weights import check_other_weights
from voxport.model.stored_weights import PACKED, RECIPE_KEY, StoredWeights
from voxport.quantize.recipe import Recipe, Rule, find_recipe, with_min_bits

MAX_SHARD = 5e9  # bytes of a file
SHARD = "{stem}-{number:05}-of-{count:05}{suffix}"
LAYOUTS = {
    "transformers": "for transformers",
    "mlx-audio": "for mlx-audio",
    "mlx": "for the modules of MLX",
    "pytorch": "in the published layout",
}
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


def convert(
    folder: Path,
    out: Path,
    conversion: Conversion,
    weights: Collection[str] = (),
    adapter: Path | None = None,
) -> Converted:
    """Writes `folder` in another layout or precision to `out`, which must be free. `weights` names files to
    read in place of the usual ones. `adapter` is the folder of an adapter to merge.

    Raises UsageError, CheckpointError or ExportError; then nothing is left.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; choose another one")
    with foreign_format_named(folder):
        family = open_family_of(folder, weights, adapter, takes_mlx=True)
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
    _check_files(folder, family, config)
    if not_storable := [path for path, reason in plan.floats.items() if reason == NO_GROUP]:
        message = "%d layers stay floats, because %s, first %s; %d layers are quantised"
        log.warning(message, len(not_storable), NO_GROUP, not_storable[0], len(plan.integers))
    for name in source.computed:
        log.info("%s: dropped, a model computes it", name)
    with staging(out) as staged, progress(plan.size / 1e6, "MB"):
        for path, outputs in plan.files.items():
            _write_shards(staged / path, outputs, _metadata(plan, outputs))
        write_files(plan, staged)
        (staged / README).write_text(_conversion_card(plan), encoding="utf-8")
    tensors = sum(len(output.entries) for output in plan.outputs)
    return Converted(out, tensors, plan.size, plan.floats, source.computed)


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
    to_mlx = plan.conversion.to == "mlx"
    tags = {"format": "mlx" if to_mlx else "pt", LAYOUT_KEY: plan.conversion.tag if to_mlx else "pytorch"}
    if plan.recipe and any(entry.dtype == PACKED for output in outputs for entry in output.entries):
        tags[RECIPE_KEY] = plan.recipe
    return tags | ({RANDOM_WEIGHTS: "voxport synth"} if plan.source.is_random else {})


def _write_shards(path: Path, outputs: list[Output], metadata: dict[str, str]) -> None:
    """Writes one file of at most `MAX_SHARD` bytes, or several with an index."""
    groups: list[list[Output]] = [[]]
    size = 0
    for output in outputs:
        if groups[-1] and size + output.size > MAX_SHARD:
            groups.append([])
            size = 0
        groups[-1].append(output)
        size += output.size
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(groups) == 1:
        write_weights(path, outputs, metadata)
        return
    places: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        name = SHARD.format(stem=path.stem, number=number, count=len(groups), suffix=path.suffix)
        write_weights(path.with_name(name), group, metadata)
        places |= {entry.name: name for output in group for entry in output.entries}
    total = sum(output.size for output in outputs)
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    _write_json(path.with_name(path.name + INDEX_SUFFIX), content)


def write_weights(path: Path, outputs: list[Output], metadata: dict[str, str]) -> None:
    """Writes a safetensors file tensor by tensor: memory holds one tensor, whatever the size of the model."""
    header = _header(outputs, metadata)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for output in outputs:
            for entry, tensor in zip(output.entries, output.make(), strict=True):
                assert tuple(tensor.shape) == entry.shape and tensor.dtype == STORED[entry.dtype], entry
                flat = tensor.contiguous().reshape(-1).view(torch.uint8)
                file.write(flat.numpy().data)
            advance(output.size / 1e6, output.published)


def _header(outputs: list[Output], metadata: dict[str, str]) -> bytes:
    """The JSON header, padded with blanks to a multiple of 8 bytes."""
    entries: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for entry in (entry for output in outputs for entry in output.entries):
        start, end = end, end + entry.size
        entries[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return header + b" " * (-len(header) % 8)


def _check_files(folder: Path, family: Family, config: Config) -> None:
    """Raises CheckpointError if a file is not complete or a voice has a fault. Warns if there is no
    tokenizer.
    """
    family.layout.check_tokenizer(folder, config)
    faults = []
    for path in (folder / name for name in _copied(folder, family)):
        reason = unfinished(path)
        if not reason and path.suffix == ".json" and path.is_file():
            reason = not_json(path)
        faults += [f"{path}: {reason}"] if reason else []
    if faults:
        raise CheckpointError(*faults)
    for name in family.layout.voice_files(folder):
        family.layout.voice(folder / name, config)
    if family.layout.has_tokenizer and not family.layout.tokenizer_files(folder):
        log.warning("%s: no tokenizer; fetch its file if the model is to read or write text", folder)


def write_files(plan: Plan, out: Path) -> None:
    """Configuration, tokenizer and voices."""
    folder, family, is_mlx = plan.source.folder, plan.family, plan.conversion.to == "mlx"
    copied = _copied(folder, family)
    for name in copied if plan.conversion.to != "transformers" else family.layout.tokenizer_files(folder):
        if (folder / name).is_file():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, out / name)
    for name, document in plan.documents.items():
        _write_json(out / name, document)
    if is_mlx:
        _write_json(out / CONFIG, _mlx_config(out, plan))
    elif CONFIG in copied:
        _write_json(out / CONFIG, without_integers(read_mlx_config(folder)))
    for name in family.layout.voice_files(folder):
        target = out / Path(name).with_suffix(".safetensors" if is_mlx else ".pt")
        target.parent.mkdir(exist_ok=True)
        rows = family.layout.voice(folder / name, plan.config).contiguous()
        # the libraries that write a file hide a full disk behind other errors
        content = BytesIO(save({VOICE_KEY: rows}) if is_mlx else b"")
        if not is_mlx:
            torch.save(rows, content)
        target.write_bytes(content.getvalue())


def _copied(folder: Path, family: Family) -> tuple[str, ...]:
    """Names of the files that are copied as they are, if they exist."""
    return tuple(dict.fromkeys((*family.mlx.copied, *family.layouts[0].config_files(folder))))


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _mlx_config(out: Path, plan: Plan) -> Json:
    """The contents of config.json. `quantization` has an entry for every packed layer, and `false` for those
    that stay floats.
    """
    mlx = plan.family.mlx
    content = without_integers(mlx.mlx_config(out)) | {MODEL_TYPE: mlx.model_type}
    if not plan.integers:
        return content
    layers: Json = {path: packing.to_entry() for path, packing in sorted(plan.integers.items())}
    layers |= {path: False for path in sorted(plan.floats)}
    packings = list(plan.integers.values())
    most = Counter(packings).most_common(1)[0][0]
    # mlx-audio leaves out layers whose inputs this number does not divide
    group = min(packing.group for packing in packings)
    return content | {QUANTIZATION: {**most._replace(group=group).to_entry(), **layers}}


def _conversion_card(plan: Plan) -> str:
    """The README: metadata as model hubs read it, and what the folder holds.

    It follows from the tensors, so that a conversion of the folder to itself writes it again.
    """
    family, source, conversion = plan.family, plan.source, plan.conversion
    release, is_mlx = family.release_of(source, plan.config), conversion.to == "mlx"
    head = front_matter(
        family,
        release,
        is_quantised=bool(plan.integers),
        languages=family.languages_of(source.folder, plan.config) or family.languages,
        tags=[*(["mlx"] if is_mlx else []), *(["random-weights"] if source.is_random else [])],
        library=family.name if conversion.tag == "pytorch" else conversion.tag,
    )
    dtypes = {entry.dtype for output in plan.outputs for entry in output.entries} - {PACKED}
    lines = [
        f"# {release.name if release else family.title}, {LAYOUTS[conversion.tag]}",
        "",
        f"Weights of {family.title}, converted by voxport. Floats are {' and '.join(sorted(dtypes))}.",
    ]
    if conversion.is_for_modules and source.pairs:
        lines.append(f"{len(source.pairs)} weight norms are folded into their weights.")
    if plan.integers:
        recipe = f" (recipe {plan.recipe})" if plan.recipe else ""
        kinds = "; ".join(
            f"{count} of {packing}" for packing, count in sorted(Counter(plan.integers.values()).items())
        )
        lines.append(f"{len(plan.integers)} layers are quantised{recipe}: {kinds}. `config.json` lists them.")
        for reason, count in sorted(Counter(plan.floats.values()).items()):
            lines.append(f"{count} layers stay floats, because {reason}.")
    return head + "\n".join(lines) + "\n"
