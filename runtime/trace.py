"""Reads the inputs and writes the outputs of a trace: every intermediate value of one run, as `.npz`.

A trace helps to write or debug a runner. docs/runtime.md lists the arrays of each family.
"""

import io
import logging
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from bundle.errors import UsageError, first_line
from bundle.files import write_whole
from runtime.engines.base import Arrays

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArraySpec:
    """An input of a trace.

    `shape`: None is any size; a string is a size that all arrays with this string share, at least 1. `limits`
    are for integers: values are 0 to limit - 1, with one limit for all values or one for each index of the
    last axis. `kind`: numbers, 16-bit samples, or a text.
    """

    shape: tuple[int | str | None, ...]
    limits: tuple[int, ...] = ()
    is_optional: bool = False
    kind: Literal["numbers", "pcm", "text"] = "numbers"


def read_inputs(path: Path, specs: Mapping[str, ArraySpec]) -> Arrays:
    """Reads the arrays of an `.npz`: floats as float32, integers as int64, samples and texts as they are.

    Raises UsageError that names the array.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path}: not a readable .npz of arrays ({first_line(error)})") from None
    except (TypeError, AttributeError) as error:  # np.load of an .npy returns an array
        raise UsageError(f"{path}: not an .npz of arrays ({first_line(error)})") from None
    optional = [name for name, spec in specs.items() if spec.is_optional]
    required = [name for name in specs if name not in optional]
    listed = ", ".join(required) + (f", optionally {', '.join(optional)}" if optional else "")
    for name in required:
        if name not in arrays:
            raise UsageError(f"{path}: array {name} is missing; expected {listed}")
    if unknown := sorted(arrays.keys() - specs.keys()):
        log.warning("%s: not used: %s; expected %s", path, ", ".join(unknown), listed)
    checked, sizes = {}, dict[str, tuple[int, str]]()
    for name, spec in specs.items():
        if name in arrays:
            _check_shape(f"{path}: array {name}", arrays[name], spec, sizes)
            checked[name] = _checked_values(f"{path}: array {name}", arrays[name], spec)
    return checked


def _check_shape(what: str, array: np.ndarray, spec: ArraySpec, sizes: dict[str, tuple[int, str]]) -> None:
    """`sizes` collects the shared sizes, and the array in which each was found first."""
    sized = list(zip(array.shape, spec.shape, strict=False))
    if array.ndim != len(spec.shape) or any(isinstance(size, int) and size != found for found, size in sized):
        expected = ["any" if size is None else size for size in spec.shape]
        raise UsageError(f"{what} has shape {list(array.shape)}, expected {expected}")
    for found, size in sized:
        if isinstance(size, str):
            before, where = sizes.setdefault(size, (found, what.rpartition(" ")[2]))
            if found != before:
                raise UsageError(
                    f"{what} has {found} {size}, {where} has {before} {size}; expected equal numbers"
                )
            if not found:
                raise UsageError(f"{what} has no {size}; expected at least one")


def _checked_values(what: str, array: np.ndarray, spec: ArraySpec) -> np.ndarray:
    kinds = {"numbers": np.integer if spec.limits else np.floating, "pcm": np.int16, "text": np.str_}
    kind = kinds[spec.kind]
    if not np.issubdtype(array.dtype, kind):
        raise UsageError(f"{what} is {array.dtype}, expected {kind.__name__}")
    if spec.kind != "numbers":
        return array
    if not np.isfinite(array).all():
        raise UsageError(f"{what} holds values that are not finite")
    for column, limit in enumerate(spec.limits):
        values = array if len(spec.limits) == 1 else array[..., column]
        place = "" if len(spec.limits) == 1 else f"[..., {column}]"
        if values.size and not 0 <= values.min() <= values.max() < limit:
            raise UsageError(
                f"{what}{place} has values from {values.min()} to {values.max()}, expected 0 to {limit - 1}"
            )
    return array.astype(np.int64 if spec.limits else np.float32)


def write_outputs(path: Path, outputs: Arrays) -> None:
    """Writes arrays as `.npz`. Raises VoxportError where the file cannot be written."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **outputs)
    write_whole(path, content.getvalue())
