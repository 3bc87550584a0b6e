"""Replays recorded calls of a graph, and quantises each linear when its inputs arrive.

All rows of all calls go through the graph in one call. A linear loads its weight when it is called, keeps
some rows of its input, is quantised with them, and computes its output with the quantised weight, which is
then released. So every linear meets what the quantised linears before it give, and memory holds one weight at
a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.checkpoint import Checkpoint
from voxport.model.layers.attention import Attended, AttentionKernel, KVCache, Projected, window_mask
from voxport.quantize.calibration import LEAST_ROWS, ROWS, InputRows, quantize
from voxport.quantize.modules import LinearKernel, QuantizedLinear, QuantizedModule
from voxport.quantize.schemes import Scheme


@dataclass
class Collector:
    """The inputs of linears by path, in bfloat16. `weight_of` reads the weight at a path.

    Before `is_open`, and with `is_float`, linears compute with floats; constants are folded from them.
    `repeated`: whether a linear was called again, with inputs that only a replay in floats collects.
    """

    weight_of: Callable[[str], torch.Tensor]
    kernel: LinearKernel
    is_float: bool = False
    is_open: bool = False
    repeated: bool = False
    _parts: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def multiply(self, x: torch.Tensor, path: str, scheme: Scheme) -> torch.Tensor:
        """x [..., K] -> [..., N]"""
        weight = self.weight_of(path)
        if not self.is_open:
            return F.linear(x, weight.float())
        parts = self._parts.setdefault(path, [])
        self.repeated |= bool(parts)
        if self.is_float or not parts:
            parts.append(_some(x.flatten(0, -2)).bfloat16())
        rows = parts[0]
        if self.is_float or len(rows) < LEAST_ROWS:
            return F.linear(x, weight.float())
        module = quantize(scheme, weight, path, InputRows.of(rows)).module
        if isinstance(module, QuantizedLinear):
            module.kernel = self.kernel
        result: torch.Tensor = module(x)
        return result

    def rows(self) -> dict[str, torch.Tensor]:
        """At most `ROWS` rows [R, K] of each linear."""
        return {path: _some(torch.cat(parts)) for path, parts in self._parts.items()}


def _some(rows: torch.Tensor) -> torch.Tensor:
    """At most `ROWS` rows, evenly spaced."""
    if len(rows) <= ROWS:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, ROWS).long()]


class AwaitingInputs(QuantizedModule):
    """A linear, or several of one input, whose weights are read when it is called."""

    def __init__(self, collector: Collector, parts: Sequence[str], weight: torch.Tensor, scheme: Scheme):
        """`parts` are the paths of the linears, `weight` is a meta tensor of all their rows."""
        super().__init__(scheme)
        self.weight = weight
        self.collector, self.parts, self._scheme = collector, tuple(parts), scheme

    def can_fuse(self, parts: Sequence[nn.Module]) -> bool:
        return all(getattr(part, "scheme", None) == self.scheme for part in parts)

    def fuse(self, parts: "Sequence[AwaitingInputs]") -> "AwaitingInputs":
        paths = [path for part in parts for path in part.parts]
        weight = torch.cat([part.weight for part in parts])
        return AwaitingInputs(self.collector, paths, weight, self._scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [self.collector.multiply(x, path, self._scheme) for path in self.parts]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return joined if self.bias is None else joined + self.bias


class SegmentAttention(AttentionKernel[tuple[int]]):
    """Causal attention within segments of rows, which are sequences of their own. Caches stay as they are."""

    def __init__(self, lengths: Sequence[int]):
        self._lengths = list(lengths)

    def cached(self, new: Projected, cache: KVCache, position: torch.Tensor) -> Attended:
        return self._attend(new, None), *cache

    def cache_update(self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int) -> tuple[int]:
        return (window,)

    def sliding_window(self, new: Projected, cache: KVCache, update: tuple[int]) -> Attended:
        return self._attend(new, update[0]), *cache

    def _attend(self, new: Projected, window: int | None) -> torch.Tensor:
        rows = new.q.shape[1]
        factor = rows // sum(self._lengths)  # an encoder has several rows for a row of its input
        lengths = [length * factor for length in self._lengths]
        parts = [part.split(lengths, dim=1) for part in (new.rotation(new.q), new.rotation(new.k), new.v)]
        segments = zip(*parts, strict=True)
        return torch.cat([self._within(q, k, v, window) for q, k, v in segments], dim=1)

    def _within(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None) -> torch.Tensor:
        rows = q.shape[1]
        mask = window_mask(torch.arange(rows), torch.tensor([0]), rows, window or rows)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return found.transpose(1, 2)


def weights_of(checkpoint: Checkpoint, root: nn.Module) -> Callable[[str], torch.Tensor]:
    """Reads the weight of the module at a path. A tied weight has the name of the first parameter."""
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    ids = {path: id(module.weight) for path, module in root.named_modules() if isinstance(module, nn.Linear)}
    return lambda path: checkpoint.tensor(names[ids[path]])
