"""Synthetic checkpoints: the published on-disk format with random weights, the same bytes for the same seed.

What values a tensor has, and what lies beside the weights, a family says: see `model.family.Synthetic`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from bundle.errors import OutputError
from model.checkpoint import WEIGHTS, expected_tensors
from model.config import PARAMS
from model.families import DEFAULT, open_family, public_name
from model.family import Family, Synthetic

BLOCK = 1 << 22  # values generated at a time: 16 MB as float32, whatever the tensor's size
ITEM = 2  # bytes of a bfloat16
Shapes = dict[str, tuple[int, ...]]
log = logging.getLogger(__name__)


def write_checkpoint(out: Path, size: str = "tiny", seed: int = 0, key: str = DEFAULT) -> None:
    """Writes params.json, consolidated.safetensors, tekken.json and what else a family has into `out`, a new or empty folder.

    Everything is made in a folder beside `out`, which is renamed at the end. Raises OutputError where `out` is not free,
    `size` is unknown, or the disk is too small.
    """
    family = open_family(key)
    if size not in family.synthetic.sizes:
        raise OutputError(f"size {size!r}: unknown, expected one of {', '.join(family.synthetic.sizes)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out}: exists and is not an empty folder; choose another folder")
    shapes = _shapes(family, size)
    needed = 8 + len(_header(shapes)) + _bytes_of(shapes) + 120 * family.synthetic.vocab(size)
    try:
        with _folder_beside(out) as partial:
            free = shutil.disk_usage(partial).free
            if free < needed:
                raise OutputError(
                    f"{out}: {size} needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free there; choose another disk"
                )
            log.info("%s: %d tensors, %.1f MB", out, len(shapes), needed / 1e6)
            _write_files(partial, family, size, seed, shapes)
            if out.is_dir():  # empty, as seen above; not every system renames onto a folder
                out.rmdir()
            partial.rename(out)
    except OSError as error:
        raise OutputError(
            f"{out}: cannot be written: {error.strerror or error}; choose another folder"
        ) from None


def embedded_name(key: str = DEFAULT) -> str:
    return f"{public_name(key)}-tiny"


def embedded_default(key: str = DEFAULT) -> Path:
    """A family's tiny checkpoint of seed 0, made on first use below $XDG_CACHE_HOME or ~/.cache, and again where it is broken."""
    cache, family = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voxport",
        open_family(key),
    )
    folder = cache / f"{embedded_name(key)}-{family.synthetic.version}"
    while not _is_whole(folder, family):
        _put_aside(folder)
        try:
            write_checkpoint(folder, key=key)
        except OutputError:
            if not folder.is_dir():  # else another process was faster: look at what it made
                raise
    return folder


def _is_whole(folder: Path, family: Family) -> bool:
    """Every file of the tiny checkpoint is there, the two that a run cannot do without in their full size."""
    shapes, params = _shapes(family, "tiny"), folder / PARAMS
    weights, expected = folder / WEIGHTS, 8 + len(_header(shapes)) + _bytes_of(shapes)
    others = [folder / name for name in ("tekken.json", *family.synthetic.beside("tiny"))]
    return (
        params.is_file()
        and params.read_bytes() == _json(family.synthetic.params("tiny"))
        and weights.is_file()
        and weights.stat().st_size == expected
        and all(path.is_file() and path.stat().st_size for path in others)
    )


def _put_aside(folder: Path) -> None:
    """Removes a broken folder; renamed first, so that nobody meets it half removed."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.broken")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside)


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """A new hidden folder in `out`'s parent, so that renaming stays on one disk; removed if it is left where it is."""
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_files(folder: Path, family: Family, size: str, seed: int, shapes: Shapes) -> None:
    synthetic = family.synthetic
    (folder / PARAMS).write_bytes(_json(synthetic.params(size)))
    (folder / "tekken.json").write_bytes(_json(synthetic.tekken(size)))
    synthetic.write_beside(folder, size, seed)
    with (folder / WEIGHTS).open("wb") as file:
        _write_weights(file, synthetic, _config(family, size), seed, shapes)


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")


def _config(family: Family, size: str) -> Any:
    return family.parse_config(family.synthetic.params(size), f"size {size}")


def _shapes(family: Family, size: str) -> Shapes:
    return expected_tensors(family.build_root(_config(family, size)))


def _bytes_of(shapes: Shapes) -> int:
    return sum(ITEM * int(np.prod(shape)) for shape in shapes.values())


def _header(shapes: Shapes) -> bytes:
    """The JSON header of the safetensors format, padded with blanks to a multiple of 8 bytes as the format's library does."""
    entries, start = {}, 0
    for name, shape in shapes.items():
        end = start + ITEM * int(np.prod(shape))
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    header = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return header + b" " * (-len(header) % 8)


def _write_weights(file: BinaryIO, synthetic: Synthetic, config: Any, seed: int, shapes: Shapes) -> None:
    """Header length (8 bytes, little-endian), header, raw tensors one after the other.

    Written here because the format's library writes from a dict of all tensors only: 8 GB of memory at the published size.
    """
    header = _header(shapes)
    file.write(struct.pack("<Q", len(header)) + header)
    for name, shape in shapes.items():
        if ITEM * np.prod(shape) > 100e6:
            log.info("%s %s", name, list(shape))
        for block in values(synthetic, name, shape, seed, config):
            file.write(block.view(torch.int16).numpy().astype("<i2", copy=False).tobytes())


def values(
    synthetic: Synthetic, name: str, shape: tuple[int, ...], seed: int, config: Any
) -> Iterator[torch.Tensor]:
    """The values of a tensor in bfloat16, flat, in blocks of whole rows. They depend on name, shape, configuration and seed alone."""
    rng = generator(seed, name)
    mean, spread = synthetic.distribution(name, shape, config)
    row = int(np.prod(shape[1:]))
    step = max(1, BLOCK // row)
    for first in range(0, shape[0], step):
        found = rng.standard_normal((min(step, shape[0] - first), row), dtype=np.float32)
        found *= spread
        found += mean
        synthetic.adjust(name, first, found, seed, config)
        yield torch.from_numpy(found.reshape(-1)).to(torch.bfloat16)


def generator(seed: int, name: str) -> np.random.Generator:
    """A stream of its own for each tensor: adding one changes no other."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))


def plain_distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and deviation where nothing special is known: norms around 1, and linears that give outputs of unit variance."""
    return (1.0, 0.1) if name.endswith("norm.weight") else (0.0, shape[-1] ** -0.5)
