"""Reads the inputs and writes the outputs of a trace: every intermediate value of one run, as `.npz`.

A trace helps to write or debug a runner. docs/runtime.md lists the arrays of each family. `runtime.codes`
reads its files with the same checks.
"""

import io
import logging
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy

from voxport.bundle.bounds import MAX_TRACE_BYTES
from voxport.bundle.errors import UsageError, first_line
from voxport.bundle.files import write_whole
from voxport.runtime.engines.base import Arrays

KINDS = {"integer": "iu", "floating": "f", "pcm": "i", "text": "U"}  # kinds of NumPy's types
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

    Names, types, shapes and sizes are checked before an array is read. Raises UsageError.
    """
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        raise UsageError(f"{path}: is missing or is not a file; expected an .npz of arrays")
    if os.path.getsize(path) > MAX_TRACE_BYTES:
        raise UsageError(f"{path}: {os.path.getsize(path)} bytes, expected at most {MAX_TRACE_BYTES}")
    with _as_usage_error(path):
        archive = zipfile.ZipFile(path)
    with archive:
        found = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        _check_names(path, found.keys(), specs)
        entries = {name: entry for name, entry in found.items() if name in specs}
        with _as_usage_error(path):
            headers = {name: _read_header(archive, entry) for name, entry in entries.items()}
        _check_headers(path, headers, specs)
        with _as_usage_error(path):
            arrays = {name: _read_array(archive, entry) for name, entry in entries.items()}
    return {
        name: _checked_values(f"{path}: array {name}", array, specs[name]) for name, array in arrays.items()
    }


def _check_names(path: Path, names: Set[str], specs: Mapping[str, ArraySpec]) -> None:
    optional = [name for name, spec in specs.items() if spec.is_optional]
    required = [name for name in specs if name not in optional]
    listed = ", ".join(required) + (f", optionally {', '.join(optional)}" if optional else "")
    for name in required:
        if name not in names:
            raise UsageError(f"{path}: array {name} is missing; expected {listed}")
    if unknown := sorted(names - specs.keys()):
        log.warning("%s: not read: %s; expected %s", path, ", ".join(unknown)[:200], listed)


class Header(NamedTuple):
    """Shape and type of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype


@contextmanager
def _as_usage_error(path: Path) -> Iterator[None]:
    """Turns an error in a damaged file into a UsageError. Only code of libraries runs below it."""
    try:
        yield
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen types
        raise UsageError(f"{path}: not a readable .npz of arrays ({first_line(error)})") from None


def _read_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Header:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a bound
        raise zipfile.BadZipFile(f"compression {entry.compress_type} of {entry.filename[:50]!r}")
    with archive.open(entry) as file:
        if npy.read_magic(file) == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(file)
        else:
            shape, _, dtype = npy.read_array_header_2_0(file)
    return Header(shape, dtype)


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as file:
        array: np.ndarray = npy.read_array(file, allow_pickle=False)
    return array


def _check_headers(path: Path, headers: Mapping[str, Header], specs: Mapping[str, ArraySpec]) -> None:
    sizes = dict[str, tuple[int, str]]()
    for name, spec in specs.items():
        if name in headers:
            _check_header(f"{path}: array {name}", headers[name], spec, sizes)
    total = sum(math.prod(found.shape) * found.dtype.itemsize for found in headers.values())
    if total > MAX_TRACE_BYTES:
        raise UsageError(f"{path}: its arrays have {total} bytes, expected at most {MAX_TRACE_BYTES}")


def _check_header(what: str, found: Header, spec: ArraySpec, sizes: dict[str, tuple[int, str]]) -> None:
    kind = str(spec.kind)
    if kind == "numbers":
        kind = "integer" if spec.limits else "floating"
    if found.dtype.kind not in KINDS[kind] or (kind == "pcm" and found.dtype.itemsize != 2):
        raise UsageError(f"{what} is {found.dtype}, expected {kind}")
    _check_shape(what, found.shape, spec, sizes)


def _check_shape(
    what: str, shape: tuple[int, ...], spec: ArraySpec, sizes: dict[str, tuple[int, str]]
) -> None:
    """`sizes` collects the shared sizes, and the array in which each was found first."""
    sized = list(zip(shape, spec.shape, strict=False))
    if len(shape) != len(spec.shape) or any(
        found < 0 or (isinstance(size, int) and size != found) for found, size in sized
    ):
        expected = ["any" if size is None else size for size in spec.shape]
        raise UsageError(f"{what} has shape {list(shape)}, expected {expected}")
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
    if spec.kind != "numbers":
        return array
    if not spec.limits:
        with np.errstate(over="ignore"):  # to infinity, which is refused
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise UsageError(f"{what} holds values that are not finite in float32")
        return array
    for column, limit in enumerate(spec.limits):
        values = array if len(spec.limits) == 1 else array[..., column]
        place = "" if len(spec.limits) == 1 else f"[..., {column}]"
        if values.size and not 0 <= values.min() <= values.max() < limit:
            raise UsageError(
                f"{what}{place} has values from {values.min()} to {values.max()}, expected 0 to {limit - 1}"
            )
    return array.astype(np.int64)


def check_array(what: str, array: np.ndarray, spec: ArraySpec) -> np.ndarray:
    """An array in memory, with the checks and in the type of `read_inputs`.

    Raises UsageError that begins with `what`.
    """
    _check_header(what, Header(array.shape, array.dtype), spec, {})
    return _checked_values(what, array, spec)


def write_outputs(path: Path, outputs: Arrays) -> None:
    """Writes arrays as `.npz`. Raises VoxportError if the file cannot be written."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **outputs)
    write_whole(path, content.getvalue())
