"""Comparison of the quantised linears of a saved artifact with the linears of its graph."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy.typing as npt

from voxport.bundle.errors import ExportError
from voxport.export.targets.base import Graph
from voxport.quantize.modules import QuantizedLinear


class StoredLinear(NamedTuple):
    """A quantised linear as it is stored: hashes of its integers and scales. A block shares a scale."""

    bits: int
    block: int
    integers: str
    scale: str


def compare_linears(
    file: str,
    graph: Graph,
    of_linear: Callable[[QuantizedLinear], StoredLinear],
    found: dict[StoredLinear, str],
) -> str:
    """Compares the linears that were found in `file`, with their places, with the linears of `graph`.

    Returns a description, empty if nothing is quantised. Raises ExportError. Changes of a weight that are
    too small to show in an output are found here.
    """
    linears = {name: part for name, part in graph.module.named_modules() if isinstance(part, QuantizedLinear)}
    expected = {of_linear(linear): name for name, linear in linears.items()}
    for linear in expected.keys() - found.keys():
        raise ExportError(f"{file}: no linear has the integers and scales of {expected[linear]}")
    for linear in found.keys() - expected.keys():
        raise ExportError(f"{file}: {found[linear]} has the weights of no linear of the module")
    return f"integers and scales of {len(found)} linears are equal" if found else ""


def hash_of(values: npt.NDArray[Any] | bytes) -> str:
    """SHA-256 of bytes, or of the bytes of an array in C order."""
    return hashlib.sha256(values if isinstance(values, bytes) else values.tobytes()).hexdigest()
