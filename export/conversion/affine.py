"""Integers as MLX stores them: w = scale · q + bias, with q of 0 to 2^bits - 1 and groups along a row.

The project's integers are symmetric: w = scale · i. So q = i + 2^(bits - 1) and bias = -scale · 2^(bits - 1).
"""

from collections.abc import Sequence

import torch

from voxport.bundle.errors import CheckpointError
from voxport.model.mlx.tensor_layouts import GROUPS, WORD
from voxport.quantize.modules import QuantizedModule
from voxport.quantize.schemes import IntegerScheme, Scheme


def group_of(scheme: Scheme, shape: Sequence[int]) -> int | None:
    """Weights that share a scale in MLX, for a weight [N, K] in `scheme`; None if MLX cannot hold it.

    A scale of a whole row is repeated for each of its groups.
    """
    if not isinstance(scheme, IntegerScheme) or len(shape) != 2:
        return None
    if scheme.group is not None:
        return scheme.group if scheme.group in GROUPS and shape[1] % scheme.group == 0 else None
    return max((group for group in GROUPS if shape[1] % group == 0), default=None)


def affine(
    module: QuantizedModule, scheme: IntegerScheme, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weight of a quantised linear or table -> uint32 [N, K * bits / 32], then scales and biases
    [N, K / group] as float32.
    """
    integers = module.get_buffer("weight")
    offset, groups = 1 << (scheme.bits - 1), integers.shape[1] // group
    scales = module.get_buffer("scale").float().reshape(len(integers), -1)
    scales = scales.repeat_interleave(groups // scales.shape[1], dim=1)
    words = pack((integers.to(torch.int16) + offset).to(torch.uint8), scheme.bits)
    return words, scales, -offset * scales


def cast_scales(
    scales: torch.Tensor, biases: torch.Tensor, bits: int, dtype: torch.dtype, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and biases of the weight `name` in another dtype. Biases of symmetric integers are computed from
    the rounded scales, so that a weight of 0 stays 0. Raises CheckpointError if `dtype` cannot hold them.
    """
    symmetric = -(1 << (bits - 1))
    rounded = _cast(scales, dtype, name)
    if torch.equal(biases, symmetric * scales):
        biases = symmetric * rounded
    return rounded, _cast(biases, dtype, name)


def _cast(values: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    after = values.to(dtype)
    kind = str(dtype).removeprefix("torch.")
    if not after.isfinite().all():
        where = f"{name}: a scale or bias of {float(values[~after.isfinite()][0]):.3g}"
        raise CheckpointError(f"{where} exceeds {kind}; use bf16 or f32")
    lost = values[(after == 0) & (values != 0)]
    if lost.numel():
        raise CheckpointError(
            f"{name}: a scale or bias of {float(lost[0]):.3g} becomes 0 in {kind}; use bf16 or f32"
        )
    return after


def pack(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [N, K] below 2^bits -> uint32 [N, K * bits / 32], the first integer in the lowest bits. `bits` is
    4 or 8.
    """
    octets = integers if bits == 8 else integers[:, ::2] | (integers[:, 1::2] << 4)
    words: torch.Tensor = octets.contiguous().view(torch.uint32)
    assert words.shape[1] * WORD == integers.shape[1] * bits
    return words
