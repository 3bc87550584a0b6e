"""The files of a converted folder besides weights: configuration, tokenizer and voices."""

import json
import logging
import shutil
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import save

from voxport.bundle.errors import CheckpointError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import VOICE_KEY
from voxport.export.conversion.job import Job
from voxport.export.conversion.outputs import Destination
from voxport.export.conversion.plan import Plan
from voxport.model.checkpoint_layout import not_json
from voxport.model.config import Config
from voxport.model.download import unfinished
from voxport.model.family import Family
from voxport.model.mlx.layout import CONFIG, MODEL_TYPE, QUANTIZATION, read_mlx_config, without_integers

log = logging.getLogger(__name__)


def check_files(folder: Path, family: Family, config: Config) -> None:
    """Raises CheckpointError where a file is not complete or a voice has a fault. Warns where there is no
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


def write_files(job: Job, out: Path) -> None:
    """Configuration, tokenizer and voices."""
    folder, family, conversion = job.folder, job.family, job.conversion
    copied = _copied(folder, family)
    for name in copied:
        if (folder / name).is_file():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, out / name)
    published = family.mlx.published_config
    if published and not (out / published).exists():
        _write_json(out / published, family.mlx.restored(read_mlx_config(folder), str(folder / CONFIG)))
    if conversion.to == "mlx":
        _write_json(out / CONFIG, _mlx_config(out, family, job.plan))
    elif CONFIG in copied:
        _write_json(out / CONFIG, without_integers(read_mlx_config(folder)))
    for name in family.layout.voice_files(folder):
        target = out / Path(name).with_suffix(".safetensors" if conversion.to == "mlx" else ".pt")
        target.parent.mkdir(exist_ok=True)
        rows = family.layout.voice(folder / name, job.config)
        target.write_bytes(_voice(rows.contiguous(), conversion.to))


def _voice(rows: torch.Tensor, to: Destination) -> bytes:
    """The content of a voice's file. The libraries that write one hide a full disk behind other errors."""
    if to == "mlx":
        return save({VOICE_KEY: rows})
    content = BytesIO()
    torch.save(rows, content)
    return content.getvalue()


def _copied(folder: Path, family: Family) -> tuple[str, ...]:
    """Names of the files that are copied as they are, where they exist."""
    return tuple(dict.fromkeys((*family.mlx.copied, *family.layout.config_files(folder))))


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _mlx_config(out: Path, family: Family, plan: Plan) -> Json:
    """The contents of config.json. `quantization` has an entry for every layer with integers, and `false` for
    those that stay floats.
    """
    content = without_integers(family.mlx.mlx_config(out)) | {MODEL_TYPE: family.mlx.model_type}
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
