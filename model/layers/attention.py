"""Grouped-query attention with a KV cache that each target keeps in its own way.

`Attention` projects; an `AttentionKernel` rotates, writes the new rows into the cache and attends. The reference one
stands here; a target's own (a fused operator, a one-hot write) is put in its place by `attention_kernel`.

A cache holds all rows up to its end, or the last of an endless stream: then a query sees the `window` last keys, itself among
them, and the cache rolls in one of two ways (`Layout.staged`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from bundle.cache import LAYOUTS, LayoutName
from model.layers.kernels import exchanged
from model.layers.linear import joined
from model.layers.rope import Rotation


class AttentionKernel(Protocol):
    """How a target attends: with a cache, laid out in its way, and among a few tokens without one."""

    layout: LayoutName

    def cached(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        position: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, S, H, D], k and v [B, S, H_kv, D] before rotation, caches in `layout`, position int64 [B] of the first row
        -> attended [B, S, H, D], and both caches with rows position … position + S - 1 written. Only a kernel that serves
        several streams in one call is given a B other than 1."""
        ...

    def turn(self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int) -> Any:
        """What the layers of one call share where caches roll: where new rows from `position` (int64 [1]) on go in one like `cache`,
        and what their queries see: `window` keys, themselves among them. In a cache of `window` rows, a call beyond it has one row."""
        ...

    def rolling(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        turn: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `cached`, of a stream without end, with the call's `turn` in place of a position."""
        ...

    def among(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [B, Q, H, D], k and v [B, S, H_kv, D] -> attended [B, Q, H, D]; every query sees every key."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def held_positions(rows: int, count: torch.Tensor) -> torch.Tensor:
    """Which position each of a ring's rows holds once `count` (int64 [1]) were written: int64 [rows], negative where none is."""
    return count - 1 - (count - 1 - torch.arange(rows)) % rows


def seen(held: torch.Tensor, position: torch.Tensor, queries: int, window: int) -> torch.Tensor:
    """Whether each of `queries` from `position` (int64 [1]) on sees the keys whose positions are `held` [L]: bool [queries, L]."""
    distance = position + torch.arange(queries)[:, None] - held[None, :]
    in_window = torch.logical_and(distance >= 0, distance < window)
    return torch.logical_and(in_window, (held >= 0)[None, :])  # not `&`, which one converter does not know


class Turn(NamedTuple):
    """Of the reference: rows that new ones are written to, int64 [S]; what is seen of the first rows, bool [S, rows]; and of a staged
    cache, which of the new rows are moved into the history after the call, and where to."""

    places: torch.Tensor
    mask: torch.Tensor
    late: torch.Tensor | None = None
    kept: torch.Tensor | None = None


class ReferenceAttention(AttentionKernel):
    """Plain attention over the live rows of the cache: what every target is compared with. Writes the cache in place."""

    def __init__(self, layout: LayoutName = "BSHD"):
        self.layout = layout
        self._rows, self._staged = LAYOUTS[layout].row_axis, LAYOUTS[layout].staged

    def cached(self, q, k, v, rotation, k_cache, v_cache, position):
        q, k = rotation(q), rotation(k)
        start, end = int(position), int(position) + q.shape[1]
        for cache, new in ((k_cache, k), (v_cache, v)):
            self._write(cache, new, torch.arange(start, end))
        causal = torch.ones(end - start, end, dtype=torch.bool).tril(start)
        return self._attend(q, k_cache, v_cache, end, causal), k_cache, v_cache

    def turn(self, position, rows, cache, window):
        length, history, new = cache.shape[self._rows], window - 1, position + torch.arange(rows)
        if not self._staged:
            return Turn(new % length, seen(held_positions(length, position + rows), position, rows, window))
        first = min(int(position), history) if length == window else history
        held = torch.cat((held_positions(history, position)[:first], new))
        places = first + torch.arange(rows)
        late = torch.nonzero(places >= history).flatten()[-history:]
        return Turn(places, seen(held, position, rows, window), late, new[late] % history)

    def rolling(self, q, k, v, rotation, k_cache, v_cache, turn):
        q, k = rotation(q), rotation(k)
        for cache, new in ((k_cache, k), (v_cache, v)):
            self._write(cache, new, turn.places)
        attended = self._attend(q, k_cache, v_cache, turn.mask.shape[1], turn.mask)
        if turn.late is not None:
            for cache, new in ((k_cache, k), (v_cache, v)):
                self._write(cache, new[:, turn.late], turn.kept)
        return attended, k_cache, v_cache

    def _write(self, cache: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> None:
        cache.index_copy_(
            self._rows, places, (new if self._rows == 1 else new.transpose(1, 2)).to(cache.dtype)
        )

    def _attend(self, q, k_cache, v_cache, rows: int, mask: torch.Tensor) -> torch.Tensor:
        keys, values = (cache.narrow(self._rows, 0, rows) for cache in (k_cache, v_cache))
        if self._rows == 1:
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [1, H_kv, rows, D]
        return F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True
        ).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention with RoPE on queries and keys; inner width `n_heads · head_dim` need not equal `dim`.

    `queries_apart` is for who asks for the queries of fewer rows than the keys. `biases` are of wq, wv and wo, as Whisper has them.
    `window` says how many keys a query of an endless stream sees, itself among them; None: all, up to the end of the cache.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        queries_apart: bool = False,
        biases: bool = False,
    ):
        super().__init__()
        self.queries_apart = queries_apart
        self.window: int | None = None
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.wq = nn.Linear(dim, n_heads * head_dim, bias=biases)
        self.wk = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * head_dim, bias=biases)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=biases)
        self.kernel: AttentionKernel = ReferenceAttention()

    def join(self) -> None:
        """Once the weights are in place: queries, keys and values become one product, or keys and values do."""
        if self.queries_apart:
            self.wkv = joined([self.wk, self.wv])
        else:
            self.wqkv = joined([self.wq, self.wk, self.wv])
            del self.wq
        del self.wk, self.wv

    def project(
        self, x: torch.Tensor, queries: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, S, dim] -> q [B, S, H, D], or of the first rows where `queries` says how many; k and v [B, S, H_kv, D]."""
        if not self.queries_apart:
            qkv = self.wqkv(x).unflatten(-1, (-1, self.head_dim))
            q, k, v = qkv.split([self.n_heads, self.n_kv_heads, self.n_kv_heads], dim=2)
            return q if queries is None else q[:, :queries], k, v
        k, v = self.wkv(x).unflatten(-1, (-1, self.head_dim)).chunk(2, dim=2)
        q = self.wq(x if queries is None else x[:, :queries])
        return q.unflatten(-1, (-1, self.head_dim)), k, v

    def turn(self, position: torch.Tensor, rows: int, cache: torch.Tensor) -> Any:
        """What `forward` takes for a position where caches roll, the same in every layer of a call."""
        return self.kernel.turn(position, rows, cache, self.window)

    def forward(self, x, rotation, k_cache, v_cache, position):
        attend = self.kernel.cached if self.window is None else self.kernel.rolling
        out, k_cache, v_cache = attend(*self.project(x), rotation, k_cache, v_cache, position)
        return self.wo(out.flatten(-2)), k_cache, v_cache


def join_products(module: nn.Module) -> None:
    """Joins what can be joined below `module`, unless its weights are on the meta device or joined already."""
    for part in list(module.modules()):
        first = getattr(part, "wk", getattr(part, "w1", None))
        if hasattr(part, "join") and first is not None and not first.weight.is_meta:
            part.join()


def attention_kernel(module: nn.Module, kernel: AttentionKernel) -> AbstractContextManager[None]:
    """Sets the kernel of every `Attention` below `module`, and restores the previous kernels on exit."""
    return exchanged(module, Attention, "kernel", kernel)
