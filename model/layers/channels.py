"""Channels between two weights: changes of both that change nothing behind them.

What a norm or a linear writes to a channel, the linears behind it read with one column. If the first is
multiplied by 2^e and the second by 2^-e, no value behind them changes, and no bit either unless a value
leaves the range of its dtype. Calibration uses this to make weights and activations easier to round, `synth
--outliers` to make them as hard as in trained models.

Values of a head can be rotated as well, because attention mixes rows and not channels: the projection of
values becomes R W_v, the linear behind attention W_o R^T (R2 of SpinQuant, Liu et al. 2024).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn


class ChannelPair(NamedTuple):
    """Paths below a block: what writes the channels, and the linears that read them and nothing else does.

    `writer` is a norm or a linear. The channels of a linear are its rows.
    """

    writer: str
    readers: tuple[str, ...]


MISTRAL_PAIRS = (
    ChannelPair("attention_norm", ("attention.wq", "attention.wk", "attention.wv")),
    ChannelPair("attention.wv", ("attention.wo",)),
    ChannelPair("ffn_norm", ("feed_forward.w1", "feed_forward.w3")),
    ChannelPair("feed_forward.w3", ("feed_forward.w2",)),
)
QWEN_PAIRS = (
    ChannelPair("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ChannelPair("self_attn.v_proj", ("self_attn.o_proj",)),
    ChannelPair("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ChannelPair("mlp.up_proj", ("mlp.down_proj",)),
)


@dataclass(frozen=True)
class Channels:
    """A pair of a model, with full paths. `width`: channels that are written.

    heads: key and value heads, if the writer projects values: queries of several heads read each of them.
    """

    writer: str
    readers: tuple[str, ...]
    width: int
    heads: int | None = None

    def of_columns(self, written: torch.Tensor, columns: int) -> torch.Tensor:
        """One value for each channel [width] -> for each of the readers' columns [columns]."""
        if not self.heads:
            return written
        heads = written.reshape(self.heads, -1)
        return heads.repeat_interleave(columns // self.width, 0).flatten()

    def largest(self, columns: torch.Tensor) -> torch.Tensor:
        """One value for each of the readers' columns -> the largest one of each channel [width]."""
        if not self.heads:
            return columns
        return columns.reshape(self.heads, -1, self.width // self.heads).amax(1).flatten()


def channels_of(root: nn.Module) -> Iterator[Channels]:
    """All pairs of a holder, in the order of its modules: those that each module names as `channel_pairs`."""
    for path, holder in root.named_modules():
        for pair in getattr(holder, "channel_pairs", ()):
            below = f"{path}." if path else ""
            writer = holder.get_submodule(pair.writer)
            parent = holder.get_submodule(pair.writer.rpartition(".")[0])
            yield Channels(
                below + pair.writer,
                tuple(below + reader for reader in pair.readers),
                writer.get_parameter("weight").shape[0],
                getattr(parent, "n_kv_heads", None) if isinstance(writer, nn.Linear) else None,
            )


class ChannelScales:
    """Exponents by tensor: rows of writers and columns of readers are multiplied by powers of two."""

    def __init__(self, root: nn.Module, exponents: Mapping[str, torch.Tensor]):
        """`exponents`: by the path of a writer, integers [width]; its rows are multiplied by 2^exponent."""
        self.rows: dict[str, torch.Tensor] = {}
        self.columns: dict[str, torch.Tensor] = {}
        for pair in channels_of(root):
            if pair.writer not in exponents:
                continue
            written = exponents[pair.writer]
            writer = root.get_submodule(pair.writer)
            for name, _ in writer.named_parameters(recurse=False):  # a bias too
                self.rows[f"{pair.writer}.{name}"] = written
            for reader in pair.readers:
                columns = root.get_submodule(reader).get_parameter("weight").shape[1]
                self.columns[f"{reader}.weight"] = -pair.of_columns(written, columns)

    def __call__(self, name: str, tensor: torch.Tensor, first: int = 0) -> torch.Tensor:
        """The tensor, or its rows from `first` on, with its powers of two; of the same dtype."""
        if (rows := self.rows.get(name)) is not None:
            part = rows[first : first + len(tensor)].reshape(-1, *[1] * (tensor.dim() - 1))
            tensor = torch.ldexp(tensor, part).to(tensor.dtype)
        if (columns := self.columns.get(name)) is not None:
            tensor = torch.ldexp(tensor, columns).to(tensor.dtype)
        return tensor


class ValueRotations:
    """Rotations by tensor: rows of projections of values, and columns of the linears behind attention."""

    def __init__(self, root: nn.Module, rotations: Mapping[str, torch.Tensor]):
        """`rotations`: by the path of a projection of values, [key and value heads, D, D]."""
        self.rows: dict[str, torch.Tensor] = {}
        self.columns: dict[str, torch.Tensor] = {}
        for pair in channels_of(root):
            if pair.writer not in rotations:
                continue
            found = rotations[pair.writer].double()
            writer = root.get_submodule(pair.writer)
            for name, _ in writer.named_parameters(recurse=False):
                self.rows[f"{pair.writer}.{name}"] = found
            for reader in pair.readers:
                columns = root.get_submodule(reader).get_parameter("weight").shape[1]
                self.columns[f"{reader}.weight"] = found.repeat_interleave(columns // pair.width, 0)

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, rotated; of the same dtype. Values are rounded to bfloat16, so that all machines have
        the same, although sums in float64 differ in their last bits.
        """
        if (rows := self.rows.get(name)) is not None:
            heads = tensor.double().reshape(*rows.shape[:2], *tensor.shape[1:])
            tensor = _rounded(torch.einsum("hij,hj...->hi...", rows, heads), tensor)
        return self.of_columns(name, tensor)

    def of_columns(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The same for columns alone: of a reader's weight, or of rows that it meets."""
        if (columns := self.columns.get(name)) is None:
            return tensor
        heads = tensor.double().reshape(len(tensor), *columns.shape[:2])
        return _rounded(torch.einsum("hij,nhj->nhi", columns, heads), tensor)


def _rounded(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(like.shape).bfloat16().to(like.dtype)


class ChannelChanges:
    """All changes of a checkpoint's channels: rotations, then powers of two."""

    def __init__(
        self, root: nn.Module, exponents: Mapping[str, torch.Tensor], rotations: Mapping[str, torch.Tensor]
    ):
        self._scales, self._rotations = ChannelScales(root, exponents), ValueRotations(root, rotations)

    def __call__(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of this name, changed; of the same dtype."""
        return self._scales(name, self._rotations(name, tensor))

    def of_inputs(self, path: str, rows: torch.Tensor) -> torch.Tensor:
        """rows [R, K] that the linear at `path` meets, as it meets them after the changes"""
        name = f"{path}.weight"
        found = self._rotations.of_columns(name, rows)
        exponents = self._scales.columns.get(name)
        return found if exponents is None else torch.ldexp(found, -exponents)
