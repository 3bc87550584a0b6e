"""Weights that are quantised by what they do to real inputs.

Each weight has rows X of the inputs that it met. `quantize` tries the search without inputs, the search with
importance, and error compensation, and takes the one whose output X W^T is nearest on rows that none of them
saw.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import SchemeEntry, file_entry
from voxport.quantize.inputs import InputRows
from voxport.quantize.modules import PalettizedLinear, QuantizedLinear, QuantizedWeight
from voxport.quantize.parallel import one_thread
from voxport.quantize.rounding import rounding_error
from voxport.quantize.schemes import Scheme
from voxport.quantize.search import SquaredErrors

LEAST_ROWS = 32  # rows of a weight, below which its inputs say too little
ROWS_AT_ONCE = 512  # of a weight; a multiple of the rows of every palette
AGAIN = "calibrate again"
KEPT_ROWS, KEPT_VALUES = 2048, 2**22  # rows of a weight that are kept, and values of them
ROWS, EXPONENTS, ROTATIONS, WEIGHTS = (
    "rows.",
    "exponents.",
    "rotations.",
    "weights.",
)  # how names of tensors begin
ABOUT = "about"  # the only key of the metadata, because a file has several in any order


class Share(NamedTuple):
    """A linear of a mixture: its recipe, its number of weights, and its share of the expected loss."""

    path: str
    recipe: str
    weights: int
    loss: float


def quantize(scheme: Scheme, weight: torch.Tensor, path: str, rows: InputRows) -> QuantizedWeight:
    """The nearest of the scheme's ways to store a linear's weight [N, K]."""
    plain, weighted = (scheme.quantize(weight, path, False, each) for each in (None, rows.importance))
    ways = [plain._replace(method="plain scales"), weighted._replace(method="importance of columns")]
    if (compensated := scheme.compensate(weighted.module, weight, rows)) is not None:
        ways.append(QuantizedWeight(compensated, weighted.errors, "error compensation (GPTQ)"))
    with one_thread(), torch.no_grad():  # the order of sums decides between ways that are nearly equal
        expected = rows.held_out @ weight.float().mT
        errors = [float((way.module(rows.held_out) - expected).norm()) for way in ways]
        best = ways[min(range(len(ways)), key=errors.__getitem__)]
        if isinstance(best.module, QuantizedLinear | PalettizedLinear):
            errors_of_weight = replace(plain.errors, searched=_squared_error(best.module, weight))
            best = best._replace(errors=errors_of_weight)
        return best


def _squared_error(module: QuantizedLinear | PalettizedLinear, weight: torch.Tensor) -> float:
    parts = (slice(first, first + ROWS_AT_ONCE) for first in range(0, len(weight), ROWS_AT_ONCE))
    differences = (module.values(part) - weight[part].float() for part in parts)
    return sum(float(each.double().square().sum()) for each in differences)


class StoredWeights:
    """Quantised linears as tensors of a file: 4-bit integers packed, errors, and what tells their weights."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.schemes: dict[str, SchemeEntry] = {}
        self.digests: dict[str, str] = {}
        self.methods = Counter[str]()
        self.rounding_errors: dict[str, float] = {}  # errors of integer activations, by path

    def add(
        self, path: str, weight: torch.Tensor, scheme: Scheme, found: QuantizedWeight, rows: InputRows
    ) -> None:
        """Nothing if the scheme cannot be stored. `rows` are the inputs of the linear."""
        module = found.module
        if isinstance(module, QuantizedLinear) and scheme.integer_activations(True):
            with one_thread():
                self.rounding_errors[path] = round(rounding_error(module, rows.held_out), 4)
        if type(module) is not scheme.linear_class():
            return
        tensors = {name: getattr(module, name) for name in module.row_tensors}
        tensors["errors"] = torch.tensor(astuple(found.errors), dtype=torch.float64)
        self.tensors |= {f"{path}.{name}": _packed(value, scheme.bits) for name, value in tensors.items()}
        self.schemes[path], self.digests[path] = scheme.to_entry(), _digest(weight)
        self.methods[found.method] += 1


def _digest(weight: torch.Tensor) -> str:
    """Of the values, whatever the dtype: a checkpoint that was fine-tuned a little has others."""
    return hashlib.sha256(weight.float().contiguous().numpy().tobytes()).hexdigest()[:16]


def _packed(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """4-bit integers [..., K] in two halves of bytes [..., K / 2]: columns k and k + K / 2."""
    if bits != 4 or tensor.is_floating_point():
        return tensor.contiguous()
    low, high = tensor.chunk(2, dim=-1)
    return (low & 15) | (high << 4)


def _unpacked(tensor: torch.Tensor, columns: int) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.shape[-1] == columns:
        return tensor
    low = tensor << 4 >> 4 if tensor.dtype == torch.int8 else tensor & 15
    return torch.cat((low, tensor >> 4), dim=-1)


class Calibration:
    """What a calibration found, in a file. An export reads one weight at a time from it.

    mixture: recipes of `--quant auto`.
    budget: fields of the budget that they were made for.
    rounding_errors: errors of integer activations, relative to the output of each linear, on held-out inputs.
    data: SHA-256 of the texts or recordings that they were made from; None if it is not known.
    exponents, rotations: of channels, by the path of what writes them (`model.layers.channels`).
    """

    def __init__(self, path: Path):
        """Raises OSError or SafetensorError if the file cannot be read."""
        self.path, self.sha256 = path, file_entry(path).sha256
        with safe_open(path, framework="pt") as file:
            self._names = set(file.keys())
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            self.exponents, self.rotations = (
                {
                    name.removeprefix(prefix): file.get_tensor(name)
                    for name in sorted(self._names)
                    if name.startswith(prefix)
                }
                for prefix in (EXPONENTS, ROTATIONS)
            )
        self._rows: dict[str, str] = about.get("rows", {})
        self.schemes = {path: SchemeEntry(**entry) for path, entry in about.get("schemes", {}).items()}
        self.digests: dict[str, str] = about.get("digests", {})
        self.mixture = tuple(Share(*each) for each in about.get("mixture", ()))
        self.rounding_errors: dict[str, float] = about.get("rounding_errors", {})
        self.budget: dict[str, float | None] | None = about.get("budget")
        self.data: str | None = about.get("data")

    def rows(self, path: str) -> InputRows | None:
        """None if the weight met fewer than `LEAST_ROWS` inputs."""
        found = InputRows.of(self._tensor(ROWS + self._rows[path])) if path in self._rows else None
        return found if found and found.count >= LEAST_ROWS else None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The stored weights, by names as in `StoredWeights`."""
        return {
            name.removeprefix(WEIGHTS): self._tensor(name)
            for name in sorted(self._names)
            if name.startswith(WEIGHTS)
        }

    def restored(self, path: str, scheme: Scheme, weight: torch.Tensor) -> QuantizedWeight | None:
        """The stored form of a linear's weight [N, K], if there is one.

        Raises UsageError if it belongs to another scheme or to other values.
        """
        if path not in self.schemes:
            return None
        errors = self._tensor(f"{WEIGHTS}{path}.errors").tolist()
        if self.schemes[path] != scheme.to_entry():
            found = dict(self.schemes[path])
            raise UsageError(f"{path}: was calibrated for {found}, not for {scheme.describe()}; {AGAIN}")
        if self.digests[path] != _digest(weight):
            raise UsageError(f"{path}: was calibrated with other values than the checkpoint's; {AGAIN}")
        make: Any = scheme.linear_class()  # each class has its own arguments
        stored = (
            _unpacked(self._tensor(f"{WEIGHTS}{path}.{name}"), weight.shape[1]) for name in make.row_tensors
        )
        return QuantizedWeight(make(*stored, scheme), SquaredErrors(*errors))

    def _tensor(self, name: str) -> torch.Tensor:
        with safe_open(self.path, framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
        return found


def save_rows(path: Path, rows: Mapping[str, torch.Tensor]) -> None:
    """rows [R, K] of each weight, in bfloat16. Weights of one input have the same tensor, which is stored
    once.
    """
    first: dict[int, str] = {}
    same = {name: first.setdefault(id(value), name) for name, value in rows.items()}
    tensors = {ROWS + name: rows[name].bfloat16() for name in first.values()}
    save_file(tensors, path, {ABOUT: json.dumps({"rows": same})})


def save_calibration(
    path: Path,
    weights: StoredWeights,
    exponents: Mapping[str, torch.Tensor] = MappingProxyType({}),
    rotations: Mapping[str, torch.Tensor] = MappingProxyType({}),
    mixture: Sequence[Share] = (),
    budget: Mapping[str, float | None] | None = None,
    data: str | None = None,
) -> None:
    """A file for `Calibration`."""
    tensors = {WEIGHTS + name: value for name, value in weights.tensors.items()}
    tensors |= {EXPONENTS + name: value.to(torch.int8) for name, value in exponents.items()}
    tensors |= {ROTATIONS + name: value for name, value in rotations.items()}
    schemes = {name: entry.model_dump(mode="json") for name, entry in weights.schemes.items()}
    about = {"schemes": schemes, "digests": weights.digests, "mixture": mixture, "data": data}
    about |= {"budget": budget, "rounding_errors": weights.rounding_errors}
    save_file(tensors, path, {ABOUT: json.dumps(about)})
