"""Weight norms: a magnitude g and a direction v in place of a weight. The weight is g · v / |v|.

Published files may store the pair. MLX has no module for it, so a folder may have the weight itself.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from voxport.bundle.errors import CheckpointError

NAME_PAIRS = (  # of g and v, in both of torch's modules
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)


class Pair(NamedTuple):
    """Names of both tensors, or the tensors."""

    g: str
    v: str


def folded_names(names: Iterable[str]) -> dict[str, Pair]:
    """The pairs among the names of tensors, by the name of the weight that each of them stands for."""
    held, found = set(names), dict[str, Pair]()
    for first, second in NAME_PAIRS:
        for name in held:
            path = name.removesuffix(first)
            if path != name and path[-1:] in (".", "") and path + second in held:
                found[f"{path}weight"] = Pair(name, path + second)
    return found


def fold(g: torch.Tensor, v: torch.Tensor, name: str) -> torch.Tensor:
    """The weight of a pair, both in the layout of PyTorch, as float64. Raises CheckpointError."""
    norm = _norm(v, g.shape)
    if not norm.all():
        raise CheckpointError(f"{name}: a row of the direction has only zeros, so no weight is defined")
    return g.double().reshape(norm.shape) * v.double() / norm


def unfold(weight: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair for a weight: g float32 of `shape`, and v, the weight itself. For zeros g is 0, and v is 1."""
    norm = _norm(weight, shape)
    direction = torch.where(norm > 0, weight, torch.ones((), dtype=weight.dtype))
    return norm.float().reshape(tuple(shape)), direction


def _norm(v: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """float64 norm of `v` over the axes along which a magnitude of `shape` has one value."""
    axes = [axis for axis, size in enumerate(shape) if size == 1] if shape else list(range(v.ndim))
    # without axes vector_norm takes all
    return torch.linalg.vector_norm(v.double(), dim=axes, keepdim=True) if axes else v.double().abs()
