"""The layouts of weights in PyTorch and in MLX, as data.

PyTorch has the axes of a kernel last, MLX has the input channels last. A tensor's layout follows from the
shape that the configuration implies, never from comparing the sizes of its axes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from voxport.bundle.errors import CheckpointError, ConfigError
from voxport.model.checkpoint import Checkpoint
from voxport.model.config import Config
from voxport.model.mlx.layout import MlxLayout
from voxport.model.mlx.weight_norms import NAME_PAIRS

Layout = Literal["pytorch", "mlx"]
# Of a weight file's metadata: the layout of its convolutions. MLX_AUDIO: those that mlx-audio stores
# reordered have the layout of MLX, the others that of PyTorch.
LAYOUT_KEY = "voxport_layout"
MLX_AUDIO: Literal["mlx-audio"] = "mlx-audio"
LAYOUT_TAGS = ("pytorch", "mlx", MLX_AUDIO)
ORDERS: Mapping[type[nn.Module], tuple[int, ...]] = {  # axes of PyTorch in the order of MLX
    nn.Conv1d: (0, 2, 1),  # [out, in, k] -> [out, k, in]
    nn.Conv2d: (0, 2, 3, 1),  # [out, in, h, w] -> [out, h, w, in]
    nn.Conv3d: (0, 2, 3, 4, 1),
    nn.ConvTranspose1d: (1, 2, 0),  # [in, out, k] -> [out, k, in]
    nn.ConvTranspose2d: (1, 2, 3, 0),  # [in, out, h, w] -> [out, h, w, in]
    nn.ConvTranspose3d: (1, 2, 3, 4, 0),
}
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
COMPUTED = ("inv_freq", "_inv_freq", "position_ids")  # ends of names of buffers that a model computes
# Of a convolution. Both parts of a weight norm have the axes of the weight.
KERNELS = ("weight", *(name for pair in NAME_PAIRS for name in pair))
RECURRENT = {"weight_ih": "Wx", "weight_hh": "Wh", "bias_ih": "bias_ih", "bias_hh": "bias_hh"}
DIRECTIONS = {"": "_forward", "_reverse": "_backward"}  # of an LSTM with two directions


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


class StoredAs(nn.ModuleDict):
    """The parameters of a module of the class `kind`, without the module."""

    def __init__(self, kind: type[nn.Module], modules: Mapping[str, nn.Module]):
        super().__init__(modules)
        self.kind = kind


def _kernels(root: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    for path, module in root.named_modules():
        kind = module.kind if isinstance(module, StoredAs) else type(module)
        order = next((order for each, order in ORDERS.items() if issubclass(kind, each)), None)
        groups = getattr(module, "groups", 1)
        if order and issubclass(kind, TRANSPOSED) and groups > 1:
            raise ConfigError(
                f"{path}: a transposed convolution of {groups} groups has no layout in MLX, expected 1 group"
            )
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


def recurrent_names(root: nn.Module) -> dict[str, str]:
    """MLX's names of the parameters of LSTMs of one layer below `root`, by PyTorch's: `weight_ih_l0` is `Wx`,
    or `Wx_forward` if there are two directions. LSTMs of several layers keep their names: MLX has none.
    """
    names = {}
    for path, module in root.named_modules():
        if not isinstance(module, nn.LSTM) or module.num_layers > 1:
            continue
        directions = DIRECTIONS if module.bidirectional else {"": ""}
        for name, mlx in RECURRENT.items():
            for suffix, direction in directions.items():
                if hasattr(module, f"{name}_l0{suffix}"):
                    published = f"{path}.{name}_l0{suffix}".lstrip(".")
                    names[published] = f"{path}.{mlx}{direction}".lstrip(".")
    return names
