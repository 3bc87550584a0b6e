"""Grouped-query attention with a KV cache that each target stores in its own way.

`Attention` projects; an `AttentionKernel` rotates, writes the new rows into the cache and attends.
`ReferenceAttention` is plain torch; a target replaces it by its own kernel (a fused operator, a one-hot
write) with `attention_kernel`.

A cache holds every row up to its end, or is a sliding-window cache: it holds the last rows of an unbounded
stream, and a query sees the last `window` keys, its own included. `bundle.spec.Layout` says where such a
cache stores a row.
"""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from voxport.bundle.spec import LAYOUTS, LayoutName
from voxport.model.config import BlockArgs
from voxport.model.layers.basic import Layer, exchanged_kernel, fuse
from voxport.model.layers.rope import Rotation

# attended [B, S, H, D], and both caches after the call
Attended = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Projected(NamedTuple):
    """New rows of one call: q [B, S, H, D], k and v [B, S, H_kv, D] before rotation."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    rotation: Rotation


class KVCache(NamedTuple):
    """Both caches of a layer, in the layout of the kernel."""

    k: torch.Tensor
    v: torch.Tensor


# What the layers of one call share for sliding-window caches. Each kernel has its own form.
Update = tuple[torch.Tensor | int | None, ...]
OwnUpdate = TypeVar("OwnUpdate", bound=Update)
Place = torch.Tensor | Update  # position of the first row, int64 [B], or with a window the update


class AttentionKernel(Protocol[OwnUpdate]):
    """How a target attends, with caches in its layout."""

    def cached(self, new: Projected, cache: KVCache, position: torch.Tensor) -> Attended:
        """Attends with a cache that holds every row.

        `position` of the first row is int64 [B]. Writes rows position … position + S - 1. B is 1 except for a
        kernel that serves several streams in one call.
        """

    def cache_update(self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int) -> OwnUpdate:
        """The update of a sliding-window cache.

        It says where the `rows` new rows from position int64 [1] are stored in a cache like `cache`, and
        which rows their queries see. With a cache of exactly `window` rows, a call beyond the window has one
        row.
        """

    def sliding_window(self, new: Projected, cache: KVCache, update: OwnUpdate) -> Attended:
        """As `cached`, with a sliding-window cache; `update` is the result of `cache_update`."""

    def rotated(
        self, q: torch.Tensor, k: torch.Tensor, rotation: Rotation
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q [B, S, H, D] and k [B, S, H_kv, D] -> both rotated, for `uncached`."""
        return rotation(q), rotation(k)

    def uncached(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [B, Q, H, D], k and v [B, S, H_kv, D] -> attended [B, Q, H, D]; every query sees every key."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


AnyAttentionKernel = AttentionKernel[Any]  # an update goes from one method of a kernel to another of the same


def ring_positions(rows: int, count: torch.Tensor) -> torch.Tensor:
    """The position that each row of a ring of `rows` holds after `count` (int64 [1]) were written.

    int64 [rows]; negative for a row not yet written.
    """
    return count - 1 - (count - 1 - torch.arange(rows)) % rows


def window_mask(keys: torch.Tensor, position: torch.Tensor, queries: int, window: int) -> torch.Tensor:
    """Whether each query from `position` (int64 [1]) on sees the keys at positions `keys` [L].

    bool [queries, L]
    """
    distance = position + torch.arange(queries)[:, None] - keys[None, :]
    in_window = torch.logical_and(distance >= 0, distance < window)
    return torch.logical_and(in_window, (keys >= 0)[None, :])  # not `&`, which one converter does not support


class CacheUpdate(NamedTuple):
    """The reference's form of a cache update.

    rows: where new rows are written, int64 [S]. mask: which of the first rows a query sees, bool [S, rows].
    For a staged cache, `moved` are the new rows that are moved into the history after the call, and
    `history_rows` their places.
    """

    rows: torch.Tensor
    mask: torch.Tensor
    moved: torch.Tensor | None = None
    history_rows: torch.Tensor | None = None


class ReferenceAttention(AttentionKernel[CacheUpdate]):
    """Plain attention over the written rows of the cache, which every target is compared with.

    Writes caches in place.
    """

    def __init__(self, layout: LayoutName = "BSHD"):
        self._row_axis, self._is_staged = LAYOUTS[layout].row_axis, LAYOUTS[layout].staged

    def cached(self, new: Projected, cache: KVCache, position: torch.Tensor) -> Attended:
        q, k = new.rotation(new.q), new.rotation(new.k)
        start, end = int(position), int(position) + q.shape[1]
        self._write(cache, k, new.v, torch.arange(start, end))
        causal = torch.ones(end - start, end, dtype=torch.bool).tril(start)
        return self._attend(q, cache, causal), *cache

    def cache_update(
        self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int
    ) -> CacheUpdate:
        length, history, new = cache.shape[self._row_axis], window - 1, position + torch.arange(rows)
        if not self._is_staged:
            keys = ring_positions(length, position + rows)
            return CacheUpdate(new % length, window_mask(keys, position, rows, window))
        first = min(int(position), history) if length == window else history
        keys = torch.cat((ring_positions(history, position)[:first], new))
        places = first + torch.arange(rows)
        moved = torch.nonzero(places >= history).flatten()[-history:]
        return CacheUpdate(places, window_mask(keys, position, rows, window), moved, new[moved] % history)

    def sliding_window(self, new: Projected, cache: KVCache, update: CacheUpdate) -> Attended:
        q, k, v = new.rotation(new.q), new.rotation(new.k), new.v
        self._write(cache, k, v, update.rows)
        attended = self._attend(q, cache, update.mask)
        if update.moved is not None and update.history_rows is not None:
            self._write(cache, k[:, update.moved], v[:, update.moved], update.history_rows)
        return attended, *cache

    def _write(self, cache: KVCache, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor) -> None:
        for part, new in zip(cache, (k, v), strict=True):
            new = new if self._row_axis == 1 else new.transpose(1, 2)
            part.index_copy_(self._row_axis, rows, new.to(part.dtype))

    def _attend(self, q: torch.Tensor, cache: KVCache, mask: torch.Tensor) -> torch.Tensor:
        """Over the first rows of the caches, as many as `mask` [S, rows] has."""
        keys, values = (part.narrow(self._row_axis, 0, mask.shape[1]) for part in cache)
        if self._row_axis == 1:
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [1, H_kv, rows, D]
        q = q.transpose(1, 2)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True).transpose(
            1, 2
        )


class HeadWeights(nn.Module):
    """Parameters of self-attention under any names, and the numbers and width of its heads."""

    n_heads: int
    n_kv_heads: int
    head_dim: int


class AttentionWeights(HeadWeights):
    """Parameters of self-attention under their published names.

    `biases`: wq, wv and wo have biases, as in Whisper.
    """

    def __init__(self, args: BlockArgs, biases: bool = False):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = args.n_heads, args.n_kv_heads, args.head_dim
        width, kv_width = args.n_heads * args.head_dim, args.n_kv_heads * args.head_dim
        self.wq = nn.Linear(args.dim, width, bias=biases)
        self.wk = nn.Linear(args.dim, kv_width, bias=False)
        self.wv = nn.Linear(args.dim, kv_width, bias=biases)
        self.wo = nn.Linear(width, args.dim, bias=biases)


class Attention(nn.Module):
    """Self-attention with RoPE on queries and keys. The width `n_heads · head_dim` need not equal `dim`.

    Projections of queries, keys and values are one fused linear. With `separate_queries` only keys and values
    are fused, for a caller that needs queries of fewer rows than keys. `window` is the number of keys that a
    query of an unbounded stream sees, its own included; None for a cache that holds every row. `names` are
    those of the four linears in `weights`.
    """

    names = ("wq", "wk", "wv", "wo")

    def __init__(self, weights: HeadWeights, window: int | None = None, separate_queries: bool = False):
        super().__init__()
        query, key, value, output = self.names
        self.window, self.separate_queries = window, separate_queries
        self.n_heads, self.n_kv_heads, self.head_dim = weights.n_heads, weights.n_kv_heads, weights.head_dim
        if separate_queries:
            self.wq: Layer = weights.get_submodule(query)
        self.wo: Layer = weights.get_submodule(output)
        if separate_queries:
            self.wkv = fuse(weights, key, value)
        else:
            self.wqkv = fuse(weights, query, key, value)
        self.kernel: AnyAttentionKernel = ReferenceAttention()

    def project(
        self, x: torch.Tensor, queries: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, S, dim] -> q [B, S, H, D], k and v [B, S, H_kv, D]. `queries` limits q to the first rows."""
        if not self.separate_queries:
            qkv = self.wqkv(x).unflatten(-1, (-1, self.head_dim))
            q, k, v = qkv.split([self.n_heads, self.n_kv_heads, self.n_kv_heads], dim=2)
            return q if queries is None else q[:, :queries], k, v
        k, v = self.wkv(x).unflatten(-1, (-1, self.head_dim)).chunk(2, dim=2)
        q = self.wq(x if queries is None else x[:, :queries])
        return q.unflatten(-1, (-1, self.head_dim)), k, v

    def forward(
        self, x: torch.Tensor, rotation: Rotation, k_cache: torch.Tensor, v_cache: torch.Tensor, where: Place
    ) -> Attended:
        """x [B, S, dim] and two caches -> attended [B, S, dim] and both caches.

        `where` is the position of the first row, int64 [B], or with a window the result of `cache_update`.
        """
        new, cache = Projected(*self.project(x), rotation), KVCache(k_cache, v_cache)
        if self.window is None:
            assert isinstance(where, torch.Tensor)
            out, k_cache, v_cache = self.kernel.cached(new, cache, where)
        else:
            out, k_cache, v_cache = self.kernel.sliding_window(new, cache, where)
        return self.wo(out.flatten(-2)), k_cache, v_cache


def cache_update(layers: nn.ModuleList, position: torch.Tensor, rows: int, cache: torch.Tensor) -> Update:
    """`AttentionKernel.cache_update` of layers that share one kernel and one window."""
    first = next(module for module in layers.modules() if isinstance(module, Attention))
    if first.window is None:
        raise ValueError("cache_update: the layers have no window")
    update: Update = first.kernel.cache_update(position, rows, cache, first.window)
    return update


def attention_kernel(module: nn.Module, kernel: AnyAttentionKernel) -> AbstractContextManager[None]:
    """Sets the kernel of every `Attention` below `module`, and restores the previous kernels on exit."""
    return exchanged_kernel(module, Attention, kernel)
