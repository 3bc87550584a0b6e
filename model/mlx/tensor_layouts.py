"""Weights as MLX stores them: the axes of kernels, weight norms, and packed integers.

PyTorch has the axes of a kernel last, MLX has the input channels last. A tensor's layout follows from the
shape that the configuration implies, never from comparing the sizes of its axes.

A weight norm is a magnitude g and a direction v in place of a weight, which is g · v / |v|. MLX has no module
for it, so a folder may have the weight itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import nn

from voxport.bundle.errors import CheckpointError
from voxport.model.checkpoint import Checkpoint
from voxport.model.config import Config
from voxport.model.mlx.layout import WORD, MlxLayout, Packing

Layout = Literal["pytorch", "mlx"]
# Key in a weight file's metadata: the layout of its convolutions. MLX_AUDIO: convolutions that mlx-audio
# reorders have the layout of MLX, the others the layout of PyTorch.
LAYOUT_KEY = "voxport_layout"
MLX_AUDIO: Literal["mlx-audio"] = "mlx-audio"
LAYOUT_TAGS = ("pytorch", "mlx", MLX_AUDIO)
ORDERS: Mapping[type[nn.Module], tuple[int, ...]] = {  # axes of PyTorch in the order of MLX
    nn.Conv1d: (0, 2, 1),  # [out, in, k] -> [out, k, in]
    nn.Conv2d: (0, 2, 3, 1),  # [out, in, k, l] -> [out, k, l, in]
    nn.ConvTranspose1d: (1, 2, 0),  # [in, out, k] -> [out, k, in]
}
COMPUTED = ("inv_freq", "_inv_freq", "position_ids")  # ends of names of buffers that a model computes
NAME_PAIRS = (  # names of g and v, in both of torch's modules
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
# The axes of a convolution. Both parts of a weight norm have the axes of the weight.
KERNELS = ("weight", *(name for pair in NAME_PAIRS for name in pair))
SCALE_DTYPES = {"mxfp4": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn, "mxfp8": torch.float8_e8m0fnu}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # floats of 4 bits, the sign in the highest
CHUNK = 2**20  # words that are unpacked together


@dataclass(frozen=True)
class Stored:
    """How a tensor is stored: `shape` in PyTorch, and `order`, its axes in the order of MLX; None if both
    are the same.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None

    @property
    def mlx_shape(self) -> tuple[int, ...]:
        return self.shape if self.order is None else tuple(self.shape[axis] for axis in self.order)

    @property
    def is_same_in_both(self) -> bool:
        """Whether PyTorch and MLX store the same bytes in the same shape."""
        return self.shape == self.mlx_shape and not self.is_ambiguous

    @property
    def is_ambiguous(self) -> bool:
        """Whether both layouts have one shape, and different values in it."""
        moved = [axis for axis, source in enumerate(self.order or ()) if axis != source]
        return self.shape == self.mlx_shape and any(self.shape[axis] > 1 for axis in moved)

    def layouts(self, shape: tuple[int, ...]) -> tuple[Layout, ...]:
        """The layouts that a tensor of this shape may have."""
        found: list[Layout] = ["pytorch"] if shape == self.shape else []
        return (*found, "mlx") if shape == self.mlx_shape else tuple(found)

    def converted(self, tensor: torch.Tensor, source: Layout, target: Layout) -> torch.Tensor:
        """`tensor` in another layout. It is contiguous."""
        if self.order is None or source == target:
            return tensor
        order = self.order
        if target == "pytorch":
            order = tuple(order.index(axis) for axis in range(len(order)))
        return tensor.permute(order).contiguous()


def stored_tensors(root: nn.Module) -> dict[str, Stored]:
    """How each parameter below `root` is stored, by name."""
    orders = {name: order for name, order in _kernels(root)}
    return {
        name: Stored(tuple(parameter.shape), orders.get(name)) for name, parameter in root.named_parameters()
    }


def _kernels(root: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    for path, module in root.named_modules():
        order = next((order for kind, order in ORDERS.items() if isinstance(module, kind)), None)
        if order:
            yield from ((f"{path}.{name}".lstrip("."), order) for name in KERNELS)


def tagged_layout(checkpoint: Checkpoint, name: str, mlx: MlxLayout[Config]) -> Layout:
    """The layout of a kernel that fits both. Raises CheckpointError if its file does not say it."""
    tag = checkpoint.metadata(name).get(LAYOUT_KEY)
    if tag not in LAYOUT_TAGS:
        where = f"{checkpoint.path(name)}: tensor {name}: shape {list(checkpoint.shape(name))}"
        raise CheckpointError(
            f"{where} fits the layouts of PyTorch and of MLX, and the file does not say which it has; "
            f"write {LAYOUT_KEY} pytorch, mlx or {MLX_AUDIO} into its metadata"
        )
    is_reordered = mlx.is_reordered(mlx.published(name))
    return "mlx" if tag == "mlx" or (tag == MLX_AUDIO and is_reordered) else "pytorch"


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


def dequantized(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor | None, packing: Packing
) -> torch.Tensor:
    """uint32 [N, K * bits / 32], scales and biases [N, K / group] -> [N, K] in the dtype of the scales.

    Floats have scales of uint8 and no biases. They become bfloat16, which is exact, as in MLX.
    """
    if biases is None:
        scales = scales.view(SCALE_DTYPES[packing.mode]).bfloat16()
    values = scales.new_empty(len(words), words.shape[1] * WORD // packing.bits)
    step = max(1, CHUNK // words.shape[1])  # rows at a time: the parts of a large table take several GB
    for start in range(0, len(words), step):
        rows = slice(start, start + step)
        parts = unpack(words[rows], packing.bits)
        numbers = (_floats(parts, packing.bits) if biases is None else parts).to(scales.dtype)
        grouped = numbers.unflatten(1, (scales.shape[1], -1)) * scales[rows, :, None]
        values[rows] = (grouped if biases is None else grouped + biases[rows, :, None]).flatten(1)
    return values


def _floats(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 -> the values of E2M1 for 4 bits, of E4M3 for 8 bits."""
    return torch.cat((E2M1, -E2M1))[codes.int()] if bits == 4 else codes.view(torch.float8_e4m3fn)


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """uint32 [N, W] as MLX packs them, the first integer in the lowest bits -> uint8 [N, W * 32 / bits].

    An integer of 3, 5 or 6 bits may begin in one word and end in the next.
    """
    step = max(1, CHUNK // words.shape[1])
    return torch.cat([_unpack_rows(part.contiguous(), bits) for part in words.split(step)])


def _unpack_rows(words: torch.Tensor, bits: int) -> torch.Tensor:
    octets = words.view(torch.uint8)
    if 8 % bits == 0:
        parts = [octets >> place & ((1 << bits) - 1) for place in range(0, 8, bits)]
        return torch.stack(parts, dim=-1).flatten(1)
    places = (octets[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1  # bits, the lowest first
    weights = torch.tensor([1 << place for place in range(bits)], dtype=torch.uint8)
    integers: torch.Tensor = (places.flatten(1).unflatten(1, (-1, bits)) * weights).sum(-1, dtype=torch.uint8)
    return integers
