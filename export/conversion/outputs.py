"""The tensors that a conversion writes, each with a function that makes it.

MLX stores integers as w = scale · q + bias, with q of 0 to 2^bits - 1 and groups along a row. The project's
are symmetric: w = scale · i. So q = i + 2^(bits - 1) and bias = -scale · 2^(bits - 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Literal, NamedTuple

import torch

from voxport.bundle.errors import CheckpointError
from voxport.model.checkpoint_layout import WeightFile
from voxport.model.family import Family
from voxport.model.mlx.tensor_layouts import GROUPS, MLX_AUDIO, WORD, Layout, Pair, Stored, fold, unfold
from voxport.model.stored_weights import BIASES, BYTES, PACKED, SCALES, WEIGHT, Found, StoredWeights
from voxport.quantize.modules import QuantizedModule
from voxport.quantize.parallel import map_items
from voxport.quantize.recipe import Recipe
from voxport.quantize.schemes import IntegerScheme, Scheme
from voxport.quantize.search import SquaredErrors

Destination = Literal["mlx", "published", "transformers"]
MlxLayout = Literal["mlx-audio", "mlx"]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.uint32: PACKED}
STORED = {name: dtype for dtype, name in NAMES.items()}
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
    """Options. `dtype` None keeps the dtype of each tensor. `recipe` and `layout` are for MLX only.

    The layout `mlx` is what MLX's own modules read: every convolution is reordered, weight norms are folded.
    None keeps the layout of the source, or takes `mlx-audio` if the source has none of the two.
    """

    to: Destination
    dtype: torch.dtype | None
    recipe: Recipe
    layout: MlxLayout | None = None

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
        """Integers of MLX as they are. Only the dtype of scales and biases changes."""
        source, found = self._source, self._source.tensors[name]
        path, mlx_path = found.name.removesuffix(WEIGHT), source.mlx_name(name).removesuffix(WEIGHT)
        dtype, bits = self._dtype(found), found.bits or 0

        def make() -> tuple[torch.Tensor, ...]:
            scales, biases = (source.raw(path + end) for end in (SCALES, BIASES))
            return source.raw(found.name), *cast_scales(scales, biases, bits, dtype, name)

        scales = source.entry(path + SCALES)[1]
        return Output(name, _entries(mlx_path, found.shape, scales, dtype), make)

    def quantised(self, name: str, scheme: IntegerScheme, group: int, is_table: bool) -> Output:
        """A weight as integers of MLX, with scales for each `group` of weights."""
        source, found = self._source, self._source.tensors[name]
        mlx_path = source.mlx_name(name).removesuffix(WEIGHT)
        (rows, columns), dtype = found.stored.shape, self._dtype(found)

        def quantise(part: torch.Tensor) -> tuple[SquaredErrors, tuple[torch.Tensor, ...]]:
            quantised = scheme.quantize(part, mlx_path, is_table)
            words, scales, biases = affine(quantised.module, scheme, group)
            return quantised.errors, (words, *cast_scales(scales, biases, scheme.bits, dtype, name))

        def make() -> tuple[torch.Tensor, ...]:
            rows = source.tensor(name).split(max(1, CHUNK // columns))  # which do not share scales
            found, parts = zip(*map_items(quantise, rows), strict=True)
            errors = sum(found, SquaredErrors())
            if not errors.are_plausible:
                raise CheckpointError(f"{name}: rounded worse than to the nearest value; this is a defect")
            return tuple(torch.cat(each) for each in zip(*parts, strict=True))

        words = (rows, columns * scheme.bits // WORD)
        return Output(name, _entries(mlx_path, words, (rows, columns // group), dtype), make)

    def _dtype(self, found: Found) -> torch.dtype:
        """The dtype of the conversion, or of the tensor; of its scales if it is packed."""
        kept = self._source.scale_dtype(found.name) if found.bits else found.dtype
        return self._conversion.dtype or STORED[kept]


def _entries(
    mlx_path: str, words: tuple[int, ...], scales: tuple[int, ...], dtype: torch.dtype
) -> tuple[Entry, ...]:
    return (
        Entry(mlx_path + WEIGHT, PACKED, words),
        Entry(mlx_path + SCALES, NAMES[dtype], scales),
        Entry(mlx_path + BIASES, NAMES[dtype], scales),
    )


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
