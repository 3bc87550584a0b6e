"""Replays recorded calls of a graph, and quantises each linear when its inputs arrive.

All rows of all calls go through the graph in one call. A linear loads its weight when it is called, keeps
some rows of its input, is quantised with them, and computes its output with the quantised weight, which is
then released. So every linear meets what the quantised linears before it give. Memory holds the floats of one
weight at a time, some rows of all inputs in bfloat16, and the integers of the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from voxport.bundle.errors import UsageError
from voxport.model.layers.attention import Attended, AttentionKernel, KVCache, Projected, window_mask
from voxport.quantize.calibration import KEPT_ROWS, KEPT_VALUES, LEAST_ROWS, StoredWeights, quantize
from voxport.quantize.inputs import InputRows
from voxport.quantize.modules import QuantizedModule
from voxport.quantize.parallel import map_items
from voxport.quantize.schemes import Scheme

OUTPUTS = 512  # of a weight that are computed together
Linears = tuple[str, ...]  # paths of linears that have one input and one scheme


@dataclass
class Collector:
    """Collects inputs of linears. They compute with floats.

    `weight_of` reads the weight at a path. Before `is_open` nothing is collected: constants are folded.

    quantizes_tables: whether embeddings are quantised.
    """

    quantizes_tables: ClassVar[bool] = False

    weight_of: Callable[[str], torch.Tensor]
    is_open: bool = False
    _parts: dict[Linears, list[torch.Tensor]] = field(default_factory=dict)

    def multiply(self, x: torch.Tensor, linears: Linears, scheme: Scheme) -> list[torch.Tensor]:
        """x [..., K] -> [..., N] of each linear"""
        if self.is_open:
            self._collect(x, linears)
        return self._in_floats(x, linears)

    def meet(self, x: torch.Tensor, linears: Linears, scheme: Scheme) -> None:
        """x [..., K]: all inputs of linears whose outputs are not needed"""
        self._collect(x, linears)

    def rows(self, linears: Linears) -> torch.Tensor:
        """Rows [R, K] of all calls, in bfloat16."""
        return _some(torch.cat(self._parts[linears]))

    def rows_by_path(self) -> dict[str, torch.Tensor]:
        """Linears of one input have the same tensor."""
        found = ((linears, self.rows(linears)) for linears in self._parts)
        return {path: rows for linears, rows in found for path in linears}

    def forget(self, linears: Linears) -> bool:
        """Drops rows that are too few to quantise with. Returns whether there were some."""
        is_short = linears in self._parts and len(self.rows(linears)) < LEAST_ROWS
        if is_short:
            del self._parts[linears]
        return is_short

    def _collect(self, x: torch.Tensor, linears: Linears) -> None:
        if not x.isfinite().all():
            raise UsageError(
                f"{linears[0]}: meets values that are not finite; check the weights before it",
                field="calibrate",
            )
        self._parts.setdefault(linears, []).append(_some(x.flatten(0, -2)).bfloat16())

    def _in_floats(self, x: torch.Tensor, linears: Linears) -> list[torch.Tensor]:
        return [_product(x, self.weight_of(path)) for path in linears]


@dataclass
class PartCollector(Collector):
    """Linears of `part` compute with weights that were quantised without inputs. Nothing is collected."""

    part: frozenset[str] = frozenset()
    _kept: dict[str, nn.Module] = field(default_factory=dict)

    def multiply(self, x: torch.Tensor, linears: Linears, scheme: Scheme) -> list[torch.Tensor]:
        return [self._multiply(x, path, scheme) for path in linears]

    def _multiply(self, x: torch.Tensor, path: str, scheme: Scheme) -> torch.Tensor:
        if not self.is_open or path not in self.part:
            return _product(x, self.weight_of(path))
        if path not in self._kept:
            self._kept[path] = scheme.quantize(self.weight_of(path), path, False).module
        found: torch.Tensor = self._kept[path](x)
        return found


@dataclass
class QuantizingCollector(Collector):
    """Each linear is quantised when its inputs arrive, in its only call, and computes with that weight.

    If it meets fewer than `LEAST_ROWS`, its weight alone decides, and nothing is stored.

    folded: linears that constants are folded from, quantised as soon as their inputs are known. Another
        replay then folds what an export folds.
    """

    quantizes_tables: ClassVar[bool] = True
    folded: dict[str, nn.Module | None] = field(default_factory=dict)
    stored: StoredWeights = field(default_factory=StoredWeights)

    def multiply(self, x: torch.Tensor, linears: Linears, scheme: Scheme) -> list[torch.Tensor]:
        if not self.is_open:
            return self._fold(x, linears)
        self._collect(x, linears)
        return [module(x) for module in self._quantized(linears, scheme)]

    def meet(self, x: torch.Tensor, linears: Linears, scheme: Scheme) -> None:
        super().meet(x, linears, scheme)
        self._quantized(linears, scheme)

    def _fold(self, x: torch.Tensor, linears: Linears) -> list[torch.Tensor]:
        """A constant, from floats in the first replay."""
        modules = [self.folded.setdefault(path, None) for path in linears]
        in_floats = self._in_floats(x, linears)
        return [module(x) if module else plain for module, plain in zip(modules, in_floats, strict=True)]

    def _quantized(self, linears: Linears, scheme: Scheme) -> list[nn.Module]:
        met, found = self.rows(linears), list[nn.Module]()
        rows = InputRows.of(met) if len(met) >= LEAST_ROWS else None
        for path in linears:
            weight = self.weight_of(path)
            chosen = quantize(scheme, weight, path, rows) if rows else scheme.quantize(weight, path, False)
            if rows:
                self.stored.add(path, weight, scheme, chosen, rows)
            found.append(chosen.module)
        self.folded |= {
            path: module for path, module in zip(linears, found, strict=True) if path in self.folded
        }
        return found


@dataclass
class RepeatingCollector(QuantizingCollector):
    """For linears that a graph calls several times: the next ones collect the inputs of all calls of one
    replay, and are then quantised and kept. Those after them compute with floats until it is their turn.
    """

    _turn: tuple[Linears, Scheme] | None = None
    _kept: dict[str, nn.Module] = field(default_factory=dict)

    def multiply(self, x: torch.Tensor, linears: Linears, scheme: Scheme) -> list[torch.Tensor]:
        if not self.is_open:
            return self._fold(x, linears)
        if linears[0] in self._kept:
            return [self._kept[path](x) for path in linears]
        self._turn = self._turn or (linears, scheme)
        if self._turn[0] == linears:
            self._collect(x, linears)
        return self._in_floats(x, linears)

    def end_turn(self) -> bool:
        """Returns whether another replay is needed."""
        if self._turn is None:
            return False
        (linears, scheme), self._turn = self._turn, None
        self._kept |= dict(zip(linears, self._quantized(linears, scheme), strict=True))
        return True


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x W^T. Parts of the weight have threads, so that no sum depends on their number."""
    found = map_items(lambda part: F.linear(x, part.float()), weight.split(OUTPUTS))
    return torch.cat(list(found), dim=-1)


def _some(rows: torch.Tensor) -> torch.Tensor:
    """rows [R, K] -> as many of them as are kept, evenly spaced."""
    most = min(KEPT_ROWS, KEPT_VALUES // rows.shape[1])
    return rows if len(rows) <= most else rows[torch.linspace(0, len(rows) - 1, most).long()]


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

    def meet(self, x: torch.Tensor) -> None:
        """Gives the inputs to the collector, and computes no output."""
        self.collector.meet(x, self.parts, self._scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.collector.multiply(x, self.parts, self._scheme)
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
