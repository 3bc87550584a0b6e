"""Weights that are quantised by what they do to real inputs.

Each weight has rows X of the inputs that it met. `quantize` tries the search without inputs, the search with
importance, and error compensation, and takes the one whose output X W^T is nearest on rows that none of them
saw.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from voxport.bundle.manifest import file_entry
from voxport.quantize.inputs import InputRows
from voxport.quantize.modules import QuantizedWeight
from voxport.quantize.parallel import one_thread
from voxport.quantize.schemes import Scheme

LEAST_ROWS = 32  # rows of a weight, below which its inputs say too little
ROWS, VALUES = 2048, 2**22  # rows of a weight that are kept, and values of them
ROWS_PREFIX, EXPONENTS_PREFIX = "rows.", "exponents."
ABOUT = "about"  # the only key of the metadata, because a file has several in any order
SAME, MIXTURE = "same rows", "mixture"  # what it has: paths of weights by the path of their rows; shares


class Share(NamedTuple):
    """A linear of a mixture: its recipe, its number of weights, and its share of the expected loss."""

    path: str
    recipe: str
    weights: int
    loss: float


def quantize(scheme: Scheme, weight: torch.Tensor, path: str, rows: InputRows) -> QuantizedWeight:
    """The nearest of the scheme's ways to store a linear's weight [N, K]."""
    weighted = scheme.quantize(weight, path, False, rows.importance)
    ways = [scheme.quantize(weight, path, False), weighted]
    if (compensated := scheme.compensate(weighted.module, weight, rows)) is not None:
        ways.append(QuantizedWeight(compensated, weighted.errors))
    with one_thread(), torch.no_grad():  # the order of sums decides between ways that are nearly equal
        expected = rows.held_out @ weight.float().mT
        errors = [float((way.module(rows.held_out) - expected).norm()) for way in ways]
    return ways[min(range(len(ways)), key=errors.__getitem__)]


class Calibration:
    """The inputs of weights by path, the exponents of channels by the path of what writes them, and the
    mixture of `--quant auto`.

    In a file, so that an export reads one weight's rows at a time.
    """

    def __init__(self, path: Path):
        """Raises OSError or SafetensorError if the file cannot be read."""
        self.path, self.sha256 = path, file_entry(path).sha256
        with safe_open(path, framework="pt") as file:
            names, about = set(file.keys()), json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            self.exponents = {
                name.removeprefix(EXPONENTS_PREFIX): file.get_tensor(name).long()
                for name in names
                if name.startswith(EXPONENTS_PREFIX)
            }
        self._rows = {name.removeprefix(ROWS_PREFIX): name for name in names if name.startswith(ROWS_PREFIX)}
        self._rows |= {path: f"{ROWS_PREFIX}{first}" for path, first in about.get(SAME, {}).items()}
        self.mixture = tuple(Share(*each) for each in about.get(MIXTURE, ()))
        self._last: tuple[str, InputRows] | None = None

    def rows(self, path: str) -> InputRows | None:
        """None if the weight met fewer than `LEAST_ROWS` inputs. Linears of one input follow each other."""
        if path not in self._rows:
            return None
        name = self._rows[path]
        if not self._last or self._last[0] != name:
            with safe_open(self.path, framework="pt") as file:
                self._last = name, InputRows.of(file.get_tensor(name))
        found = self._last[1]
        return found if len(found.fit) + len(found.held_out) >= LEAST_ROWS else None

    def all_rows(self) -> dict[str, torch.Tensor]:
        """rows [R, K] of each weight, as `save_calibration` takes them."""
        with safe_open(self.path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in sorted({*self._rows.values()})}
        return {path: tensors[name] for path, name in self._rows.items()}


def save_calibration(
    path: Path,
    rows: Mapping[str, torch.Tensor],
    exponents: Mapping[str, torch.Tensor] = MappingProxyType({}),
    mixture: Sequence[Share] = (),
) -> None:
    """rows [R, K] of each weight in bfloat16, the same tensor for weights of one input; exponents in int8."""
    first: dict[int, str] = {}
    same = {name: first.setdefault(id(value), name) for name, value in rows.items()}
    tensors = {f"{ROWS_PREFIX}{name}": rows[name].bfloat16() for name in first.values()}
    tensors |= {f"{EXPONENTS_PREFIX}{name}": value.to(torch.int8) for name, value in exponents.items()}
    same = {name: its for name, its in same.items() if name != its}
    save_file(tensors, path, {ABOUT: json.dumps({SAME: same, MIXTURE: mixture})})
