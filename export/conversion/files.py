"""The files of a converted folder beside its weights: configuration, tokenizer, voices and README."""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import save

from voxport.bundle.errors import CheckpointError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import VOICE_KEY
from voxport.export.card import front_matter
from voxport.export.conversion.plan import Plan
from voxport.model.checkpoint_layout import not_json
from voxport.model.config import Config
from voxport.model.download import unfinished
from voxport.model.family import Family
from voxport.model.mlx.layout import CONFIG, MODEL_TYPE, QUANTIZATION, read_mlx_config, without_integers
from voxport.model.stored_weights import PACKED

LAYOUTS = {
    "mlx-audio": "for mlx-audio",
    "mlx": "for the modules of MLX",
    "pytorch": "in the published layout",
}
log = logging.getLogger(__name__)


def check_files(folder: Path, family: Family, config: Config) -> None:
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
    for name in copied:
        if (folder / name).is_file():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, out / name)
    published = family.mlx.published_config
    if published and not (out / published).exists():
        write_json(out / published, family.mlx.restored(read_mlx_config(folder), str(folder / CONFIG)))
    if is_mlx:
        write_json(out / CONFIG, _mlx_config(out, plan))
    elif CONFIG in copied:
        write_json(out / CONFIG, without_integers(read_mlx_config(folder)))
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
    return tuple(dict.fromkeys((*family.mlx.copied, *family.layout.config_files(folder))))


def write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _mlx_config(out: Path, plan: Plan) -> Json:
    """The contents of config.json. `quantization` has an entry for every layer with integers, and `false` for
    those that stay floats.
    """
    mlx = plan.family.mlx
    content = without_integers(mlx.mlx_config(out)) | {MODEL_TYPE: mlx.model_type}
    if not plan.integers:
        return content
    layers: Json = {
        path: {"group_size": group, "bits": bits, "mode": "affine"}
        for path, (bits, group) in sorted(plan.integers.items())
    }
    layers |= {path: False for path in sorted(plan.floats)}
    pairs = list(plan.integers.values())
    bits, group = max(set(pairs), key=pairs.count)
    # mlx-audio leaves out layers whose inputs this number does not divide
    group = min(group, *(size for _, size in pairs))
    return content | {QUANTIZATION: {"group_size": group, "bits": bits, "mode": "affine", **layers}}


def conversion_card(plan: Plan) -> str:
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
        library=conversion.tag if is_mlx else family.name,
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
            f"{count} of {bits} bits in groups of {group}"
            for (bits, group), count in sorted(Counter(plan.integers.values()).items())
        )
        lines.append(f"{len(plan.integers)} layers have integers{recipe}: {kinds}. `config.json` lists them.")
        for reason, count in sorted(Counter(plan.floats.values()).items()):
            lines.append(f"{count} layers stay floats, because {reason}.")
    return head + "\n".join(lines) + "\n"
