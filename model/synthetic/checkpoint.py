"""Synthetic checkpoints: the published files with random weights, the same bytes for the same seed.

A family defines the values of a tensor and the files beside the weights: see `model.family.Synthetic`.
"""

import hashlib
import json
import logging
import secrets
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from voxport.bundle.errors import CheckpointError, UsageError
from voxport.bundle.files import is_fixed, move_into
from voxport.bundle.json_types import Json
from voxport.bundle.progress import advance, progress
from voxport.bundle.user_cache import user_cache
from voxport.model.checkpoint import Shapes, expected_tensors
from voxport.model.checkpoint_layout import RANDOM_WEIGHTS
from voxport.model.config import Config
from voxport.model.families import DEFAULT, open_family, public_name
from voxport.model.family import Family, Synthetic

HEAD = 128  # rows of the largest head, which no block divides
BLOCK = 1 << 22  # values generated at a time: 16 MB as float32, whatever the tensor's size
ITEM = {"BF16": 2, "F32": 4}  # bytes of a value
LOGGED_BYTES = 100e6  # tensors from this size on are logged
log = logging.getLogger(__name__)
Change = Callable[
    [str, torch.Tensor, int], torch.Tensor
]  # (tensor's name, some rows, the first one's number)
Plant = Callable[[nn.Module, int], Change]  # (holder of all tensors, seed) -> what changes them


def write_checkpoint(
    out: Path, size: str = "tiny", seed: int = 0, key: str = DEFAULT, plant: Plant | None = None
) -> None:
    """Writes a checkpoint of the family `key` into `out`, a new or empty folder. `plant` adds outliers.

    The files are written to a folder beside `out`, which is renamed at the end. Raises UsageError if
    `out` is not free, `size` is unknown, or the disk is too small.
    """
    family = open_family(key)
    if size not in family.synthetic.sizes:
        raise UsageError(f"size {size!r}: unknown, expected one of {', '.join(family.synthetic.sizes)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; choose another folder")
    shapes, documents = expected_shapes(family, size), _documents(family.synthetic, size)
    parts = _by_file(family.synthetic, shapes)
    weights = sum(bytes_of(part, _dtype(family.synthetic, file)) for file, part in parts.items())
    needed = sum(len(content) for content in documents.values()) + weights
    try:
        with _folder_beside(out) as partial:
            if (free := shutil.disk_usage(partial).free) < needed:
                raise UsageError(
                    f"{out}: {size} needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free there; "
                    "choose another disk"
                )
            log.info("%s: %d tensors, %.1f MB", out, len(shapes), needed / 1e6)
            for name, content in documents.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                (partial / name).write_bytes(content)
            family.synthetic.write_extra_files(partial, size, seed)
            planted = plant(family.build_all(family.config_of_size(size)), seed) if plant else None
            with progress(weights / 1e6, "MB"):
                _write_weights(partial, family, size, seed, parts, planted)
            if not family.layout.detect(partial):
                raise UsageError(
                    f"{out}: {size} lacks {family.layout.marker}; add it to `Synthetic.documents`"
                )
            if partial.parent == out:
                move_into(out, partial)
            else:
                if out.is_dir():  # empty, as checked above; not every system renames onto a folder
                    out.rmdir()
                partial.rename(out)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{out}: cannot be written: {reason}; choose another folder") from None


def random_checkpoint(key: str = DEFAULT) -> Path:
    """A family's tiny checkpoint of seed 0, in the user's cache folder.

    Written on first use, and again if its JSON files, weights or voices are damaged.
    """
    family = open_family(key)
    folder = user_cache() / f"{public_name(key)}-random-{family.synthetic.version}"
    while not _is_complete(folder, family):
        _remove(folder)
        try:
            write_checkpoint(folder, key=key)
        except UsageError:
            if not folder.is_dir():  # otherwise another process wrote it first: check what it wrote
                raise
    return folder


def _is_complete(folder: Path, family: Family) -> bool:
    """Whether the tiny checkpoint has its JSON files, byte by byte, and weights and voices that are whole."""
    documents = _documents(family.synthetic, "tiny")
    weights = _by_file(family.synthetic, expected_shapes(family, "tiny"))
    return all((folder / name).is_file() for name in (*documents, *weights)) and (
        all((folder / name).read_bytes() == content for name, content in documents.items())
        and all(_is_whole(folder / name) for name in weights)
        and _has_voices(folder, family)
    )


def _has_voices(folder: Path, family: Family) -> bool:
    try:
        voices = family.layout.voices(folder, family.config_of_size("tiny"))
    except CheckpointError:
        return False
    return bool(voices) == family.layout.has_voices


def _is_whole(weights: Path) -> bool:
    try:
        with safe_open(weights, framework="numpy"):
            return True
    except SafetensorError:
        return False


def _remove(folder: Path) -> None:
    """Removes a damaged folder. It is renamed first, so that no process reads it half removed."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.broken")
    with suppress(FileNotFoundError):
        shutil.rmtree(folder.rename(aside))


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """A new hidden folder beside `out`, so that renaming stays on one disk.

    Removed on exit unless it was renamed.
    """
    place = out if is_fixed(out) else out.parent
    partial = place / f".{out.absolute().name}.{secrets.token_hex(4)}.partial"
    partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _documents(synthetic: Synthetic, size: str) -> dict[str, bytes]:
    texts = {
        name: json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
        for name, content in synthetic.documents(size).items()
    }
    return {name: f"{text}\n".encode() for name, text in texts.items()}


def expected_shapes(family: Family, size: str) -> Shapes:
    """Shapes of all tensors by name, also of those that no graph needs."""
    shapes = expected_tensors(family.build_all(family.config_of_size(size)))
    return shapes | family.synthetic.flags(shapes)


def _by_file(synthetic: Synthetic, shapes: Shapes) -> dict[str, Shapes]:
    """The tensors of each weight file, under their full names."""
    files: dict[str, Shapes] = {file: {} for file in synthetic.weight_files}
    for name, shape in shapes.items():
        fitting = [file for file, prefix in synthetic.weight_files.items() if name.startswith(prefix)]
        files[max(fitting, key=lambda file: len(synthetic.weight_files[file]))][name] = shape
    return files


def bytes_of(shapes: Shapes, dtype: str = "BF16") -> int:
    """Bytes of tensors of a dtype."""
    return sum(ITEM[dtype] * prod(shape) for shape in shapes.values())


def _dtype(synthetic: Synthetic, file: str) -> str:
    return "F32" if file in synthetic.float32_files else "BF16"


def _header(synthetic: Synthetic, file: str, shapes: Shapes) -> bytes:
    """The JSON header of a safetensors file, padded with blanks to a multiple of 8 bytes."""
    entries: Json = {"__metadata__": {RANDOM_WEIGHTS: "voxport synth", **synthetic.metadata}}
    dtype, end = _dtype(synthetic, file), 0
    for name, shape in shapes.items():
        start, end = end, end + ITEM[dtype] * prod(shape)
        entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        entries[name.removeprefix(synthetic.weight_files[file])] = entry
    header = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return header + b" " * (-len(header) % 8)


def _write_weights(
    folder: Path,
    family: Family,
    size: str,
    seed: int,
    parts: dict[str, Shapes],
    planted: Change | None,
) -> None:
    """Not by the format's library, which needs all tensors in memory: 8 GB at the published size."""
    synthetic, config = family.synthetic, family.config_of_size(size)
    for name, part in parts.items():
        dtype = _dtype(synthetic, name)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            header = _header(synthetic, name, part)
            file.write(struct.pack("<Q", len(header)) + header)
            for tensor, shape in part.items():
                if ITEM[dtype] * prod(shape) >= LOGGED_BYTES:
                    log.info("%s %s", tensor, list(shape))
                for block in values(synthetic, tensor, shape, seed, config, planted):
                    stored = block.float().view(torch.int32) if dtype == "F32" else block.view(torch.int16)
                    content = stored.numpy().astype(f"<i{ITEM[dtype]}", copy=False).tobytes()
                    file.write(content)
                    advance(len(content) / 1e6, tensor)


def values(
    synthetic: Synthetic[Config],
    name: str,
    shape: tuple[int, ...],
    seed: int,
    config: Config,
    planted: Change | None = None,
) -> Iterator[torch.Tensor]:
    """The values of a tensor in bfloat16, flat, in blocks of whole rows.

    They depend only on name, shape, configuration and seed.
    """
    rng = generator(seed, name)
    mean, spread = synthetic.distribution(name, shape, config)
    row = prod(shape[1:])
    step = max(1, BLOCK // row)
    step -= step % HEAD if step > HEAD else 0
    for first in range(0, shape[0], step):
        found = rng.standard_normal((min(step, shape[0] - first), row), dtype=np.float32)
        found *= spread
        found += mean
        synthetic.adjust(name, first, found, seed, config)
        block = torch.from_numpy(found).to(torch.bfloat16)
        yield (planted(name, block, first) if planted else block).reshape(-1)


def generator(seed: int, name: str) -> np.random.Generator:
    """A random stream of its own for each tensor: a new tensor does not change the others."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))


def plain_distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Default mean and deviation: norms around 1, and linears whose outputs have unit variance."""
    return (1.0, 0.1) if name.endswith("norm.weight") else (0.0, shape[-1] ** -0.5)


def scale_for_chance(count: int, chance: float) -> float:
    """How much larger one of `count` rows of a head must be, so that it wins with probability `chance`.

    Logits are then about normal. The largest of n independent ones has its median where the tail is ln 2 / n.
    """
    normal = NormalDist()
    return normal.inv_cdf(np.log(2) / count) / normal.inv_cdf(chance)
