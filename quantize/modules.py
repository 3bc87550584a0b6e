"""Modules that replace linears and tables, and the arithmetic in which quantised weights are multiplied.

A linear kernel is a function `kernel(x, linear) -> y`. The three kernels here compute what the kernels of the
targets compute, in plain torch. They are the reference for comparisons, and two targets lower them
unchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
import torchao.quantization.quant_primitives  # noqa: F401  registers the operators used below
from torch import nn

from voxport.quantize.parallel import map_items, spare_threads
from voxport.quantize.search import SquaredErrors

LinearKernel = Callable[[torch.Tensor, "QuantizedLinear"], torch.Tensor]
CHUNK = 2**20  # number of weights that are dequantised together
MIN_PRODUCTS = 2**28  # multiplications in less time than threads take to start, 5 ms
SMALLEST = 1e-30  # least absmax of a block of activations: 127 / absmax is finite, and zeros stay zeros


class WeightFormat(Protocol):
    """The fields of any scheme that modules read. See `quantize.schemes.Scheme`."""

    @property
    def bits(self) -> int: ...
    @property
    def min_correlation(self) -> float: ...
    def integer_activations(self, kernel_is_integer: bool) -> bool: ...


class IntegerFormat(WeightFormat, Protocol):
    """The fields of an integer scheme that modules read. See `quantize.schemes.IntegerScheme`."""

    @property
    def group(self) -> int | None: ...
    @property
    def activations(self) -> str: ...
    @property
    def range(self) -> tuple[int, int]: ...


class QuantizedModule(nn.Module):
    """Replaces a linear (x [..., K] -> [..., N]) or, if `is_table`, an embedding (ids [...] -> [..., D]).

    `weight` is a tensor of N rows. The loader assigns the checkpoint's bias to `bias`, and `forward` of a
    linear adds it. `paths` are the modules that it replaces, in the order of the rows.

    row_tensors: the arguments of the class before `scheme`. Linears of one scheme are fused by concatenating
        the rows of these. If there are none, their outputs are concatenated instead.
    """

    is_table: ClassVar[bool] = False
    row_tensors: ClassVar[tuple[str, ...]] = ()
    weight: torch.Tensor
    bias: nn.Parameter | None
    paths: tuple[str, ...]

    def __init__(self, scheme: WeightFormat):
        super().__init__()
        self.scheme, self.paths = scheme, ()
        self.register_parameter("bias", None)

    def pack(self) -> None:
        """Changes how weights are held: less memory or faster calls. The module is only called from now on.
        Optional, not reversible.
        """

    def can_fuse(self, parts: Sequence[nn.Module]) -> bool:
        """Whether `fuse` takes these modules of the same class."""
        return bool(self.row_tensors) and all(getattr(part, "scheme", None) == self.scheme for part in parts)

    def fuse(self, parts: Sequence[Self]) -> Self:
        """One linear with the rows of all parts, in order, without bias."""
        make: Any = type(self)  # each subclass has its own arguments
        rows = (torch.cat([getattr(part, name) for part in parts]) for name in self.row_tensors)
        fused: Self = make(*rows, self.scheme)
        fused.paths = tuple(path for part in parts for path in part.paths)
        return fused


class QuantizedWeight(NamedTuple):
    """What `Scheme.quantize` returns. `method`: how a calibration chose the integers."""

    module: QuantizedModule
    errors: SquaredErrors
    method: str = ""


def _multiply_by_rows(
    x: torch.Tensor,
    out_features: int,
    rows_of: Callable[[slice, torch.Tensor], torch.Tensor],
    bias: torch.Tensor | None,
    multiple: int = 1,
) -> torch.Tensor:
    """x [..., K] -> [..., N]. `rows_of` returns rows [rows, K] of the weight as floats, and may write them to
    the tensor that it gets. A few rows at a time, of which `multiple` belong together, stay in the
    processor's cache. Which rows these are does not depend on the number of threads, and so no sum does.
    """
    rows = max(1, CHUNK // x.shape[-1] // multiple) * multiple
    if rows >= out_features:
        return F.linear(x, rows_of(slice(out_features), x.new_empty(out_features, x.shape[-1])), bias)
    result, grows = x.new_empty(*x.shape[:-1], out_features), torch.is_grad_enabled()

    def run(starts: range) -> None:
        held = x.new_empty(rows, x.shape[-1])
        with torch.set_grad_enabled(grows):  # a thread of its own begins with gradients
            for start in starts:
                place = slice(start, min(start + rows, out_features))
                weight = rows_of(place, held[: place.stop - start])
                result[..., place] = F.linear(x, weight, None if bias is None else bias[place])

    starts = range(0, out_features, rows)
    threads = spare_threads() if x.numel() * out_features >= MIN_PRODUCTS else 1
    if threads == 1:
        run(starts)
    else:
        list(map_items(run, [starts[first::threads] for first in range(threads)]))
    return result


class QuantizedLinear(QuantizedModule):
    """x [..., K] -> [..., N] with weight int8 [N, K], scale float32 [N, K / block], float32 bias [N] or none.

    `pack` halves the memory of 4-bit integers. Packed integers are read with `integers`. They cannot be
    lowered.
    """

    row_tensors: ClassVar[tuple[str, ...]] = ("constant", "scale")
    scheme: IntegerFormat

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: IntegerFormat):
        super().__init__(scheme)
        self.is_packed = False
        self.out_features, self.in_features = integers.shape
        self.weight: torch.Tensor = nn.Buffer(integers)
        self.scale: torch.Tensor = nn.Buffer(scale)
        # a constant, because lowerings match one
        self.zero: torch.Tensor = nn.Buffer(torch.zeros_like(scale, dtype=torch.int8), persistent=False)
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

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K] -> [..., N] with dequantised weights.

        While exporting, this is the operator that lowerings recognise.
        """
        if torch.compiler.is_exporting():
            low, high = self.scheme.range
            weight = torch.ops.torchao.dequantize_affine(
                self.constant, [1, self.block], self.scale, self.zero, torch.int8, low, high
            )
            return F.linear(x, weight, self.bias)
        return _multiply_by_rows(x, self.out_features, self.values, self.bias)

    def values(self, rows: slice = slice(None), out: torch.Tensor | None = None) -> torch.Tensor:
        """float32 [rows, K], packed or not. Written to `out` if it is given."""
        held = len(range(*rows.indices(len(self.weight))))
        out = self.scale.new_empty(held, self.in_features) if out is None else out
        weight = self.integers(rows, out)
        weight.unflatten(1, (-1, self.block)).mul_(self.scale[rows, :, None])
        return weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x, self)


class QuantizedEmbedding(QuantizedModule):
    """ids [...] -> [..., D] from int8 rows and one float32 scale per row."""

    is_table: ClassVar[bool] = True

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: IntegerFormat):
        super().__init__(scheme)
        self.weight = nn.Buffer(integers)
        self.scale = nn.Buffer(scale)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].float() * self.scale[ids]


@torch.library.custom_op("voxport::look_up", mutates_args=())
def look_up(indices: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    """indices uint8 [N, K], palette [N / channels, values] -> values [N, K].

    While exporting, this is the operator that lowerings recognise.
    """
    return palette.gather(1, indices.reshape(len(palette), -1).long()).reshape(indices.shape)


@look_up.register_fake
def _shape_of_look_up(indices: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    return palette.new_empty(indices.shape)


class PalettizedLinear(QuantizedModule):
    """x [..., K] -> [..., N] with weight uint8 [N, K]: indices into palette float32 [N / channels, values].

    `pack` replaces the indices by the values, in float16, which holds them exactly. They cannot be lowered
    then, and are called without looking them up.
    """

    row_tensors: ClassVar[tuple[str, ...]] = ("indices", "palette")

    def __init__(self, indices: torch.Tensor, palette: torch.Tensor, scheme: WeightFormat):
        super().__init__(scheme)
        self.out_features, self.in_features = indices.shape
        self.weight: torch.Tensor = nn.Buffer(indices)
        self.palette = nn.Buffer(palette)

    @property
    def is_packed(self) -> bool:
        return self.weight.is_floating_point()

    @property
    def channels(self) -> int:
        """Number of rows that share a palette."""
        return len(self.weight) // len(self.palette)

    @property
    def indices(self) -> torch.Tensor:
        """`weight` for lowering. Raises RuntimeError if it is packed."""
        if self.is_packed:
            raise RuntimeError("packed palettes cannot be lowered; load the graph again")
        return self.weight

    def values(self, rows: slice = slice(None)) -> torch.Tensor:
        """float32 [rows, K], packed or not. `rows` begin and end between two palettes."""
        if self.is_packed:
            return self.weight[rows].float()
        start, stop, _ = rows.indices(len(self.weight))
        palettes = self.palette[start // self.channels : stop // self.channels]
        values: torch.Tensor = look_up(self.weight[rows], palettes)
        return values

    def pack(self) -> None:
        if not self.is_packed:
            values = torch.empty_like(self.weight, dtype=torch.float16)
            for start in range(0, len(values), self.channels):
                place = slice(start, start + self.channels)
                values[place] = self.values(place)
            self.weight = values

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            return F.linear(x, look_up(self.indices, self.palette), self.bias)
        rows_of = lambda rows, _: self.values(rows)
        return _multiply_by_rows(x, len(self.weight), rows_of, self.bias, self.channels)


def float_activations(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Weights are dequantised, activations are not rounded (Core ML, Core AI)."""
    return linear.multiply(x)


def int8_per_token(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Each row of activations is quantised to 8 bits with its own zero point (XNNPACK's dynamic kernels)."""
    if not linear.scheme.integer_activations(True):
        return linear.multiply(x)
    if not torch.compiler.is_exporting():
        return linear.multiply(_round_rows(x))
    ops, block = torch.ops.torchao, [1] * (x.dim() - 1) + [x.shape[-1]]
    scale, zero = ops.choose_qparams_affine(
        x, "ASYMMETRIC", block, torch.int8, -128, 127, None, None, torch.int8
    )
    integers = ops.quantize_affine(x, block, scale, zero, torch.int8, -128, 127)
    return linear.multiply(ops.dequantize_affine(integers, block, scale, zero, torch.int8, -128, 127))


def _round_rows(x: torch.Tensor) -> torch.Tensor:
    """What the operators of `int8_per_token` compute, without the checks that each of them makes."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=torch.finfo(x.dtype).smallest_normal)
    zero = (-128 - torch.round(low / scale)).clamp(-128, 127)
    return ((torch.round(x * (1.0 / scale)) + zero).clamp(-128, 127) - zero) * scale


def int8_per_block(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """Each block of a row is quantised symmetrically with the scale absmax / 127, rounding half to even. The
    block is the block of a weight scale: a group, or the whole row.

    The ONNX target computes this. It multiplies by 127 / absmax. A division by absmax / 127 rounds some ties
    in the other direction.
    """
    if not linear.scheme.integer_activations(True):
        return linear.multiply(x)
    blocks = x.unflatten(-1, (-1, linear.block))
    top = blocks.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    # torch's `127 / top` differs by one unit in the last place
    inverse = torch.full_like(top, 127.0) / top
    return linear.multiply((torch.round(blocks * inverse) * (top / 127)).flatten(-2))


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


def pack_modules(module: nn.Module) -> None:
    """Packs every quantised module below `module`. Packed modules can be called, but not lowered."""
    for part in module.modules():
        if isinstance(part, QuantizedModule):
            part.pack()
