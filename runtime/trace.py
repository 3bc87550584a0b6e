"""Traces: arrays in, every intermediate value out, for whoever writes or debugs a runner. What a family takes and gives, it says itself.

Inputs and outputs bear the names that BUNDLE.md lists.
"""

from __future__ import annotations

import io
import logging
import zipfile
import zlib
from pathlib import Path

import numpy as np

from bundle.errors import UsageError, first_line
from bundle.files import write_whole
from runtime.families.base import Wanted

log = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


def read_inputs(path: Path, wanted: dict[str, Wanted]) -> Arrays:
    """The wanted arrays of an .npz, floats as float32 and integers as int64. Raises UsageError that names the array."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (
        OSError,
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        TypeError,
        AttributeError,
    ) as error:  # the last two: an .npy
        raise UsageError(f"{path}: not a readable .npz of arrays ({first_line(error)})") from None
    optional = [name for name, want in wanted.items() if want.is_optional]
    listed = ", ".join(name for name in wanted if name not in optional) + (
        f", optionally {', '.join(optional)}" if optional else ""
    )
    missing = next((name for name in wanted if name not in arrays and name not in optional), None)
    if missing:
        raise UsageError(f"{path}: array {missing} is missing; expected {listed}")
    unknown = sorted(arrays.keys() - wanted.keys())
    if unknown:
        log.warning("%s: not used: %s; expected %s", path, ", ".join(unknown), listed)
    sizes: dict[str, tuple[int, str]] = {}
    return {
        name: _checked(f"{path}: array {name}", arrays[name], want, sizes)
        for name, want in wanted.items()
        if name in arrays
    }


def _checked(what: str, array: np.ndarray, want: Wanted, sizes: dict[str, tuple[int, str]]) -> np.ndarray:
    if array.ndim != len(want.shape) or any(
        isinstance(size, int) and size != found for found, size in zip(array.shape, want.shape, strict=True)
    ):
        raise UsageError(
            f"{what} has shape {list(array.shape)}, expected {['any' if s is None else s for s in want.shape]}"
        )
    for found, size in zip(array.shape, want.shape, strict=True):
        if isinstance(size, str):
            before, where = sizes.setdefault(size, (found, what.rpartition(" ")[2]))
            if found != before:
                raise UsageError(f"{what} has {found} {size}, {where} has {before} {size}; expected as many")
            if not found:
                raise UsageError(f"{what} has no {size}; expected at least one")
    kind = np.integer if want.ends else np.floating
    if not np.issubdtype(array.dtype, kind):
        raise UsageError(f"{what} is {array.dtype}, expected {kind.__name__}")
    if not np.isfinite(array).all():
        raise UsageError(f"{what} holds values that are not finite")
    for column, end in enumerate(want.ends):
        values = array if len(want.ends) == 1 else array[..., column]
        place = "" if len(want.ends) == 1 else f"[..., {column}]"
        if values.size and not 0 <= values.min() <= values.max() < end:
            raise UsageError(
                f"{what}{place} has values from {values.min()} to {values.max()}, expected 0 to {end - 1}"
            )
    return array.astype(np.int64 if want.ends else np.float32)


def write_outputs(path: Path, outputs: Arrays) -> None:
    """As .npz. Raises VoxportError where that is not possible."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **outputs)
    write_whole(path, content.getvalue())
