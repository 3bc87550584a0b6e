"""The tensors that a conversion writes, each with a function that makes it.

MLX stores integers as w = scale · q + bias, with q of 0 to 2^bits - 1 and groups along a row. The project's
are symmetric: w = scale · i. So q = i + 2^(bits - 1) and bias = -scale · 2^(bits - 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Literal, NamedTuple

import numpy as np
import torch

from voxport.bundle.errors import CheckpointError
from voxport.model.checkpoint_layout import WeightFile
from voxport.model.family import Family
from voxport.model.mlx.layout import GROUPS, PACKINGS, WORD, Packing
from voxport.model.mlx.tensor_layouts import MLX_AUDIO, Layout, Pair, Stored, fold, unfold
from voxport.model.stored_weights import BIASES, BYTE, BYTES, PACKED, SCALES, WEIGHT, Found, StoredWeights
from voxport.quantize.modules import QuantizedModule
from voxport.quantize.parallel import map_items
from voxport.quantize.recipe import Recipe
from voxport.quantize.schemes import IntegerScheme, Scheme
from voxport.quantize.search import SquaredErrors

Destination = Literal["mlx", "published", "transformers"]
MlxLayout = Literal["mlx-audio", "mlx"]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.uint32: PACKED}
STORED = {name: dtype for dtype, name in NAMES.items()} | {BYTE: torch.uint8}
CHUNK = 2**22  # weights that a thread quantises together


class Entry(NamedTuple):
    """A tensor in a file: its name there, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return BYTES[self.dtype] * prod(self.shape)


@dataclass(frozen=True)
class Output:
    """Tensors that are made from one published tensor. `make` reads and converts it."""

    published: str
    entries: tuple[Entry, ...]
    make: Callable[[], tuple[torch.Tensor, ...]]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True)
class Conversion:
    """Options. `dtype` None keeps the dtype of each tensor. The others are for MLX only.

    packing: what MLX computes for linears that the recipe gives 4 bits, in place of the recipe's integers.

    The layout `mlx` is what MLX's own modules read: every convolution is reordered, weight norms are folded.
    None keeps the layout of the source, or takes `mlx-audio` if the source has none of the two.
    """

    to: Destination
    dtype: torch.dtype | None
    recipe: Recipe
    layout: MlxLayout | None = None
    packing: Packing | None = None

    @property
    def keeps_integers(self) -> bool:
        """Whether integers of the source are copied, and no weight is quantised."""
        return self.to == "mlx" and self.recipe.name == "none"

    @property
    def is_for_modules(self) -> bool:
        """Whether it writes the layout of MLX's own modules."""
        return self.to == "mlx" and self.layout == "mlx"

    @property
    def tag(self) -> str:
        """The name of the layout that it writes."""
        return {"mlx": self.layout or MLX_AUDIO, "published": "pytorch"}.get(self.to, self.to)


class OutputMaker:
    """Makes the outputs of one conversion. `name` is the published name of a tensor."""

    def __init__(self, source: StoredWeights, family: Family, conversion: Conversion, file: WeightFile):
        """`file` has the names and values that a destination other than MLX has."""
        self._source, self._family, self._conversion, self._file = source, family, conversion, file
        self._pairs = {pair.v: weight for weight, pair in source.pairs.items()}
        self._magnitudes = {pair.g for pair in source.pairs.values()}

    def floats(self, name: str) -> list[Output]:
        """A tensor as floats, in the layout of the destination. A weight norm and its weight are converted to
        each other; a magnitude has no output of its own then.
        """
        source, folds = self._source, self._conversion.is_for_modules
        dtype = self._dtype(source.tensors[name])
        if name in source.folded and not folds:
            return self._unfolded(name, source.folded[name], dtype)
        if name in self._magnitudes and folds:
            return []
        if name in self._pairs and folds:
            weight = self._pairs[name]
            pair, stored = source.pairs[weight], source.tensors[name].stored

            def read() -> torch.Tensor:
                return fold(source.tensor(pair.g), source.tensor(pair.v), weight)

            return [self._float(weight, stored, dtype, read)]
        return [self._float(name, source.tensors[name].stored, dtype, lambda: source.tensor(name))]

    def _unfolded(self, weight: str, pair: Pair, dtype: torch.dtype) -> list[Output]:
        """Both tensors of a weight norm. In float32 the magnitude is exact enough for the same weight."""
        source = self._source
        dtypes = (self._conversion.dtype or torch.float32, dtype)
        shape = source.expected[pair.g].shape

        def make(index: int) -> torch.Tensor:
            return unfold(source.tensor(weight), shape)[index]

        return [
            self._float(name, source.expected[name], each, partial(make, index))
            for index, (name, each) in enumerate(zip(pair, dtypes, strict=True))
        ]

    def _float(
        self, name: str, stored: Stored, dtype: torch.dtype, read: Callable[[], torch.Tensor]
    ) -> Output:
        """A tensor that `read` gives in the layout of PyTorch. Making it raises CheckpointError."""
        to_mlx = self._conversion.to == "mlx"
        is_reordered = self._conversion.is_for_modules or (to_mlx and self._family.mlx.is_reordered(name))
        layout: Layout = "mlx" if is_reordered else "pytorch"

        def make() -> tuple[torch.Tensor, ...]:
            before = read()
            after = before.to(dtype)
            if after is not before and not all(map(torch.isfinite, after.aminmax())):
                largest = float(before.abs().max())
                raise CheckpointError(
                    f"{name}: a value of {largest:.3g} exceeds {NAMES[dtype]}; use bf16 or f32"
                )
            return (self._file.converted(name, stored.converted(after, "pytorch", layout)),)

        shape = stored.mlx_shape if layout == "mlx" else stored.shape
        target = self._source.mlx_name(name) if to_mlx else self._file.written(name)
        return Output(name, (Entry(target, NAMES[dtype], shape),), make)

    def packed(self, name: str) -> Output:
        """A packed weight as it is. Only the dtype of scales and biases of integers changes."""
        source, found = self._source, self._source.tensors[name]
        packing, dtype = found.packing or PACKINGS["affine"], self._dtype(found)

        def make() -> tuple[torch.Tensor, ...]:
            words, *scales = source.packed(found)
            return words, *cast_scales(scales, packing.bits, dtype, name)

        return Output(name, self._entries(name, packing, dtype), make)

    def quantised(self, name: str, scheme: IntegerScheme, packing: Packing, is_table: bool) -> Output:
        """A weight as MLX packs it: the integers of `scheme`, or what MLX itself computes."""
        source, found = self._source, self._source.tensors[name]
        mlx_path = source.mlx_name(name).removesuffix(WEIGHT)
        columns, dtype = found.stored.shape[1], self._dtype(found)
        (floats,) = self.floats(name)

        def quantise(part: torch.Tensor) -> tuple[SquaredErrors, tuple[torch.Tensor, ...]]:
            quantised = scheme.quantize(part, mlx_path, is_table)
            words, scales, biases = affine(quantised.module, scheme, packing.group)
            return quantised.errors, (words, *cast_scales((scales, biases), scheme.bits, dtype, name))

        def make() -> tuple[torch.Tensor, ...]:
            step = max(1, CHUNK // columns)  # rows do not share scales
            if self._conversion.packing:
                parts = tuple(mlx_quantized(rows, packing) for rows in floats.make()[0].split(step))
            else:
                found, parts = zip(*map_items(quantise, source.tensor(name).split(step)), strict=True)
                if not sum(found, SquaredErrors()).are_plausible:
                    raise CheckpointError(
                        f"{name}: rounded worse than to the nearest value; this is a defect"
                    )
            return tuple(torch.cat(each) for each in zip(*parts, strict=True))

        return Output(name, self._entries(name, packing, dtype), make)

    def _entries(self, name: str, packing: Packing, dtype: torch.dtype) -> tuple[Entry, ...]:
        shapes = packing.shapes(self._source.tensors[name].stored.shape)
        assert shapes, name
        path, is_float = self._source.mlx_name(name).removesuffix(WEIGHT), packing.mode != "affine"
        entries = (
            Entry(path + WEIGHT, PACKED, shapes[0]),
            Entry(path + SCALES, BYTE if is_float else NAMES[dtype], shapes[1]),
            Entry(path + BIASES, NAMES[dtype], shapes[1]),
        )
        return entries[:2] if is_float else entries

    def _dtype(self, found: Found) -> torch.dtype:
        """The dtype of the conversion, or of the tensor; of its scales if it is packed."""
        kept = self._source.scale_dtype(found.name) if found.packing else found.dtype
        return self._conversion.dtype or (torch.bfloat16 if kept == BYTE else STORED[kept])


def packing_of(scheme: Scheme, shape: tuple[int, ...], wanted: Packing | None) -> Packing | None:
    """How MLX packs a weight [N, K] in `scheme`; None if it cannot. `wanted` is in place of 4 bits.

    A scale of a whole row is repeated for each of its groups.
    """
    if not isinstance(scheme, IntegerScheme):
        return None
    if wanted and scheme.bits == 8 and wanted.bits != 8:
        wanted = Packing(8, wanted.group) if wanted.mode == "affine" else PACKINGS["mxfp8"]
    groups = [group for group in reversed(GROUPS) if scheme.group in (None, group)]
    packings = [wanted] if wanted else [Packing(scheme.bits, group) for group in groups]
    return next((packing for packing in packings if packing.shapes(shape)), None)


def mlx_quantized(weight: torch.Tensor, packing: Packing) -> tuple[torch.Tensor, ...]:
    """[N, K] -> uint32 words and scales, and biases of integers, computed by MLX."""
    import mlx.core as mx  # an optional package

    kind = getattr(mx, str(weight.dtype).removeprefix("torch."))
    values = mx.array(weight.contiguous().view(torch.uint8).numpy()).view(kind)
    found = mx.quantize(values, packing.group, packing.bits, packing.mode)
    octets = [np.array(part.view(mx.uint8)) for part in found]
    dtypes = torch.uint32, torch.uint8 if packing.mode != "affine" else weight.dtype, weight.dtype
    return tuple(torch.from_numpy(each).view(dtype) for each, dtype in zip(octets, dtypes, strict=False))


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
    found: Sequence[torch.Tensor], bits: int, dtype: torch.dtype, name: str
) -> tuple[torch.Tensor, ...]:
    """Scales and biases of the weight `name` in another dtype; scales without biases are kept. Biases of
    symmetric integers are computed from the rounded scales, so that a weight of 0 stays 0. Raises
    CheckpointError if `dtype` cannot hold them.
    """
    if len(found) == 1:
        return tuple(found)
    scales, biases = found
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
