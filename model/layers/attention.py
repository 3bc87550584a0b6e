"""Grouped-query attention with a KV cache that each target keeps in its own way.

`Attention` projects; an `AttentionKernel` rotates, writes the new rows into the cache and attends. The reference one
stands here; a target's own (a fused operator, a one-hot write) is put in its place by `use_attention`.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.linear import joined
from model.layers.rope import Rotation

CACHE_AXIS = {"BSHD": 1, "BHSD": 2}  # of a cache's rows, by layout


class AttentionKernel(Protocol):
    """How a target attends: with a cache, laid out in its way, and among a few tokens without one."""

    layout: str

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

    def among(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [B, Q, H, D], k and v [B, S, H_kv, D] -> attended [B, Q, H, D]; every query sees every key."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def cache_shape(layout: str, length: int, n_kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Shape of one cache tensor: BSHD [1, length, heads, head_dim] or BHSD [1, heads, length, head_dim]."""
    if layout not in CACHE_AXIS:
        raise ValueError(f"cache layout {layout!r}: expected one of {', '.join(CACHE_AXIS)}")
    return (1, length, n_kv_heads, head_dim) if layout == "BSHD" else (1, n_kv_heads, length, head_dim)


class ReferenceAttention(AttentionKernel):
    """Plain attention over the live prefix of the cache: what every target is compared with. Writes the cache in place."""

    def __init__(self, layout: str = "BSHD"):
        self.layout = layout

    def cached(self, q, k, v, rotation, k_cache, v_cache, position):
        q, k = rotation(q), rotation(k)
        start, end = int(position), int(position) + q.shape[1]
        rows = CACHE_AXIS[self.layout]
        for cache, new in ((k_cache, k), (v_cache, v)):
            cache.narrow(rows, start, end - start).copy_(new if rows == 1 else new.transpose(1, 2))
        keys, values = (c.narrow(rows, 0, end) for c in (k_cache, v_cache))
        if rows == 1:
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [1, H_kv, end, D]
        causal = torch.ones(end - start, end, dtype=torch.bool).tril(start)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=causal, enable_gqa=True)
        return out.transpose(1, 2), k_cache, v_cache


class Attention(nn.Module):
    """Self-attention with RoPE on queries and keys; inner width `n_heads · head_dim` need not equal `dim`.

    `queries_apart` is for who asks for the queries of fewer rows than the keys.
    """

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, head_dim: int, queries_apart: bool = False):
        super().__init__()
        self.queries_apart = queries_apart
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.wq = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)
        self.kernel: AttentionKernel = ReferenceAttention()

    def join(self) -> None:
        """Once the weights are in place: queries, keys and values become one product, or keys and values do."""
        if self.queries_apart:
            self.wkv = joined([self.wk, self.wv])
        else:
            self.wqkv = joined([self.wq, self.wk, self.wv])
            del self.wq
        del self.wk, self.wv

    def project(self, x: torch.Tensor, queries: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, S, dim] -> q [B, S, H, D], or of the first rows where `queries` says how many; k and v [B, S, H_kv, D]."""
        if not self.queries_apart:
            qkv = self.wqkv(x).unflatten(-1, (-1, self.head_dim))
            q, k, v = qkv.split([self.n_heads, self.n_kv_heads, self.n_kv_heads], dim=2)
            return q if queries is None else q[:, :queries], k, v
        k, v = self.wkv(x).unflatten(-1, (-1, self.head_dim)).chunk(2, dim=2)
        q = self.wq(x if queries is None else x[:, :queries])
        return q.unflatten(-1, (-1, self.head_dim)), k, v

    def forward(self, x, rotation, k_cache, v_cache, position):
        out, k_cache, v_cache = self.kernel.cached(*self.project(x), rotation, k_cache, v_cache, position)
        return self.wo(out.flatten(-2)), k_cache, v_cache


def join_products(module: nn.Module) -> None:
    """Joins what can be joined below `module`, unless its weights are on the meta device or joined already."""
    for part in list(module.modules()):
        first = getattr(part, "wk", getattr(part, "w1", None))
        if hasattr(part, "join") and first is not None and not first.weight.is_meta:
            part.join()


def use_attention(module: nn.Module, kernel: AttentionKernel) -> None:
    """Puts a target's way of attending into every `Attention` below `module`."""
    for part in module.modules():
        if isinstance(part, Attention):
            part.kernel = kernel
