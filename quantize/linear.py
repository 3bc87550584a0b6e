"""Modules that hold integers and scales, and the arithmetic in which they are multiplied.

A product is `product(x, linear) -> y`. The three here are what a target's kernels compute, written in plain torch: they
are the reference that an artifact is compared with, and for two targets also the spelling that is lowered.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchao.quantization.quant_primitives  # noqa: F401  registers the operators used below
from torch import nn

from quantize.recipe import Scheme

Product = Callable[[torch.Tensor, "QuantizedLinear"], torch.Tensor]
CHUNK = 2**20  # weights that are dequantised together
CHANNEL_BLOCK = (
    128  # activation block of a per-channel weight under `int8_per_block`: what the ONNX kernel is given
)


class QuantizedLinear(nn.Module):
    """x [..., K] -> [..., N] with weight int8 [N, K], scale float32 [N, K / block], and a float32 bias [N] or none.

    `pack` halves what integers of 4 bits take; then they are read through `integers`, and can no longer be lowered.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    bias: nn.Parameter | None

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: Scheme):
        super().__init__()
        self.scheme, self.is_packed = scheme, False
        self.out_features, self.in_features = integers.shape
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)
        self.register_buffer(
            "zero", torch.zeros_like(scale, dtype=torch.int8), persistent=False
        )  # lowerings match a constant
        self.register_parameter("bias", None)
        self.product: Product = float_activations

    @property
    def block(self) -> int:
        """Weights that share a scale."""
        return self.in_features // self.scale.shape[1]

    def pack(self) -> None:
        """Two integers of 4 bits a byte: column k in the low half, k + K / 2 in the high one. For good."""
        if self.scheme.bits == 4 and self.in_features % 2 == 0 and not self.is_packed:
            low, high = self.weight.chunk(2, dim=1)
            self.weight, self.zero, self.is_packed = (low & 15) | (high << 4), self.zero.new_empty(0), True

    @property
    def constant(self) -> torch.Tensor:
        """`weight`, as lowerings take it. Raises RuntimeError where it is packed."""
        if self.is_packed:
            raise RuntimeError(
                "the integers are packed, so they can no longer be lowered; load the graph again"
            )
        return self.weight

    def integers(self, rows: slice = slice(None), out: torch.Tensor | None = None) -> torch.Tensor:
        """int8 [rows, K], packed or not; written to `out`, of any dtype, where it is given."""
        held = self.weight[rows]
        if not self.is_packed:
            return held if out is None else out.copy_(held)
        out = held.new_empty(len(held), self.in_features) if out is None else out
        low, high = out.chunk(2, dim=1)
        low.copy_(held << 4 >> 4)
        high.copy_(held >> 4)
        return out

    def can_stack(self, parts: list[QuantizedLinear]) -> bool:
        """Rows of one scheme are quantised independently of each other, so that stacking changes no value."""
        return all(part.scheme == self.scheme for part in parts)

    def stack(self, parts: list[QuantizedLinear]) -> QuantizedLinear:
        """One linear with the rows of all parts, in order."""
        return QuantizedLinear(
            torch.cat([part.constant for part in parts]),
            torch.cat([part.scale for part in parts]),
            self.scheme,
        )

    def dequantized(self) -> torch.Tensor:
        """float32 [N, K], as an operator that every lowering recognises."""
        low, high = self.scheme.range
        return torch.ops.torchao.dequantize_affine(
            self.constant, [1, self.block], self.scale, self.zero, torch.int8, low, high
        )

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K] -> [..., N] with dequantised weights: in a lowering the operator that it recognises, in eager the same
        numbers some rows at a time, which stay in the processor's cache, in memory that is asked for once."""
        if torch.compiler.is_exporting():
            return F.linear(x, self.dequantized(), self.bias)
        result = x.new_empty(*x.shape[:-1], self.out_features)
        rows = max(1, CHUNK // self.in_features)
        held = x.new_empty(min(rows, self.out_features), self.in_features)
        for start in range(0, self.out_features, rows):
            place = slice(start, min(start + rows, self.out_features))
            weight = self.integers(place, held[: place.stop - start])
            weight.unflatten(1, (-1, self.block)).mul_(self.scale[place, :, None])
            result[..., place] = F.linear(x, weight, None if self.bias is None else self.bias[place])
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x, self)


class QuantizedEmbedding(nn.Module):
    """ids [...] -> [..., D] from int8 rows and one float32 scale per row."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: Scheme):
        super().__init__()
        self.scheme = scheme
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].float() * self.scale[ids]


def float_activations(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Weights are dequantised, activations stay as they are (Core ML)."""
    return linear.multiply(x)


def int8_per_token(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Each row of activations is quantised to 8 bits with a zero point of its own (XNNPACK's dynamic kernels)."""
    ops, block = torch.ops.torchao, [1] * (x.dim() - 1) + [x.shape[-1]]
    scale, zero = ops.choose_qparams_affine(
        x, "ASYMMETRIC", block, torch.int8, -128, 127, None, None, torch.int8
    )
    integers = ops.quantize_affine(x, block, scale, zero, torch.int8, -128, 127)
    return linear.multiply(ops.dequantize_affine(integers, block, scale, zero, torch.int8, -128, 127))


def int8_per_block(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Each block of a row is quantised symmetrically, scale absmax / 127, half to even (ONNX Runtime's MatMulNBits, level 4).

    The kernel multiplies by 127 / absmax; a division by absmax / 127 rounds some ties the other way.
    """
    columns = linear.in_features
    size = linear.block if linear.scheme.group else CHANNEL_BLOCK
    blocks = F.pad(x, (0, -columns % size)).unflatten(-1, (-1, size))
    top = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(
        top > 0, torch.full_like(top, 127.0) / top, 0.0
    )  # torch's `127 / top` is one ulp off
    rounded = (torch.round(blocks * inverse) * (top / 127)).flatten(-2)[..., :columns]
    return linear.multiply(rounded)


def pack_integers(module: nn.Module) -> None:
    """Packs every quantised linear below `module`, which only eager and comparisons use from here on."""
    for part in module.modules():
        if isinstance(part, QuantizedLinear):
            part.pack()


def use_product(module: nn.Module, product: Product) -> None:
    """Sets the arithmetic of every quantised linear below `module`."""
    for part in module.modules():
        if isinstance(part, QuantizedLinear):
            part.product = product
