"""Modules that hold integers and scales, and the arithmetic in which they are multiplied.

A linear kernel is a function `kernel(x, linear) -> y`. The three kernels here compute what the kernels of the
targets compute, in plain torch. They are the reference for comparisons, and two targets lower them
unchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
import torchao.quantization.quant_primitives  # noqa: F401  registers the operators used below
from torch import nn

from quantize.module import QuantizedModule
from quantize.schemes.integer import IntegerScheme

LinearKernel = Callable[[torch.Tensor, "QuantizedLinear"], torch.Tensor]
CHUNK = 2**20  # number of weights that are dequantised together
CHANNEL_BLOCK = (
    128  # activation block of a per-channel weight in `int8_per_block`, as given to the ONNX kernel
)


class QuantizedLinear(QuantizedModule):
    """x [..., K] -> [..., N] with weight int8 [N, K], scale float32 [N, K / block], float32 bias [N] or none.

    `pack` halves the memory of 4-bit integers. Packed integers are read with `integers`. They cannot be
    lowered.
    """

    scheme: IntegerScheme
    scale: torch.Tensor
    zero: torch.Tensor

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: IntegerScheme):
        super().__init__(scheme)
        self.is_packed = False
        self.out_features, self.in_features = integers.shape
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)
        # a constant, because lowerings match one
        self.register_buffer("zero", torch.zeros_like(scale, dtype=torch.int8), persistent=False)
        self.kernel: LinearKernel = float_activations

    @property
    def block(self) -> int:
        """Number of weights that share a scale."""
        return self.in_features // self.scale.shape[1]

    def pack(self) -> None:
        """Stores two 4-bit integers per byte: column k in the low half, k + K / 2 in the high half."""
        if self.scheme.bits == 4 and self.in_features % 2 == 0 and not self.is_packed:
            low, high = self.weight.chunk(2, dim=1)
            self.weight, self.zero, self.is_packed = (low & 15) | (high << 4), self.zero.new_empty(0), True

    @property
    def constant(self) -> torch.Tensor:
        """`weight` for lowering. Raises RuntimeError if it is packed."""
        if self.is_packed:
            raise RuntimeError("packed integers cannot be lowered; load the graph again")
        return self.weight

    def integers(self, rows: slice = slice(None), out: torch.Tensor | None = None) -> torch.Tensor:
        """int8 [rows, K], packed or not. Written to `out`, of any dtype, if it is given."""
        held = self.weight[rows]
        if not self.is_packed:
            return held if out is None else out.copy_(held)
        out = held.new_empty(len(held), self.in_features) if out is None else out
        low, high = out.chunk(2, dim=1)
        low.copy_(held << 4 >> 4)
        high.copy_(held >> 4)
        return out

    def can_fuse(self, parts: Sequence[nn.Module]) -> bool:
        """Rows are quantised independently of each other, so fusing parts of one scheme changes no value."""
        return all(getattr(part, "scheme", None) == self.scheme for part in parts)

    def fuse(self, parts: Sequence[Self]) -> Self:
        return type(self)(
            torch.cat([part.constant for part in parts]),
            torch.cat([part.scale for part in parts]),
            self.scheme,
        )

    def dequantized(self) -> torch.Tensor:
        """float32 [N, K], computed by an operator that every lowering recognises."""
        low, high = self.scheme.range
        weight: torch.Tensor = torch.ops.torchao.dequantize_affine(
            self.constant, [1, self.block], self.scale, self.zero, torch.int8, low, high
        )
        return weight

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K] -> [..., N] with dequantised weights.

        While exporting, this is the operator that lowerings recognise. In eager mode it computes the same
        numbers for a few rows at a time in one reused buffer, which stays in the processor's cache.
        """
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
        return self.kernel(x, self)


class QuantizedEmbedding(QuantizedModule):
    """ids [...] -> [..., D] from int8 rows and one float32 scale per row."""

    is_table: ClassVar[bool] = True
    scale: torch.Tensor

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: IntegerScheme):
        super().__init__(scheme)
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].float() * self.scale[ids]


def float_activations(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Weights are dequantised, activations are not rounded (Core ML)."""
    return linear.multiply(x)


def int8_per_token(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Each row of activations is quantised to 8 bits with its own zero point (XNNPACK's dynamic kernels)."""
    ops, block = torch.ops.torchao, [1] * (x.dim() - 1) + [x.shape[-1]]
    scale, zero = ops.choose_qparams_affine(
        x, "ASYMMETRIC", block, torch.int8, -128, 127, None, None, torch.int8
    )
    integers = ops.quantize_affine(x, block, scale, zero, torch.int8, -128, 127)
    return linear.multiply(ops.dequantize_affine(integers, block, scale, zero, torch.int8, -128, 127))


def int8_per_block(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Each block of a row is quantised symmetrically with the scale absmax / 127, rounding half to even.

    ONNX Runtime's MatMulNBits computes this at accuracy level 4. Its kernel multiplies by 127 / absmax. A
    division by absmax / 127 rounds some ties in the other direction.
    """
    columns = linear.in_features
    size = linear.block if linear.scheme.group else CHANNEL_BLOCK
    blocks = F.pad(x, (0, -columns % size)).unflatten(-1, (-1, size))
    top = blocks.abs().amax(-1, keepdim=True)
    # torch's `127 / top` differs by one unit in the last place
    inverse = torch.where(top > 0, torch.full_like(top, 127.0) / top, 0.0)
    rounded = (torch.round(blocks * inverse) * (top / 127)).flatten(-2)[..., :columns]
    return linear.multiply(rounded)


@contextmanager
def linear_kernel(module: nn.Module, kernel: LinearKernel) -> Iterator[None]:
    """Sets the kernel of every quantised linear below `module`, and restores the previous kernels on exit."""
    linears = [part for part in module.modules() if isinstance(part, QuantizedLinear)]
    previous = [linear.kernel for linear in linears]
    try:
        for linear in linears:
            linear.kernel = kernel
        yield
    finally:
        for linear, before in zip(linears, previous, strict=True):
            linear.kernel = before
