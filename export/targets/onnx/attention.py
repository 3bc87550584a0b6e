"""Attention over caches that a call extends in place, by ONNX Runtime's `GroupQueryAttention`."""

import torch

from bundle.spec import LayoutName
from export.targets.onnx.operators import biased_attention, group_query_attention
from export.targets.onnx.target import OnnxTarget
from export.targets.tracing import MASKED
from model.layers.attention import Attended, AttentionKernel, ring_positions, window_mask
from model.layers.rope import Rotation

CacheUpdate = tuple[torch.Tensor, torch.Tensor | None]


class SharedBufferAttention(AttentionKernel):
    """Caches [B, H_kv, L, D]. The runtime binds one buffer as past and present. Only new rows are written.

    The operator rotates queries and keys with the whole table. For a sliding-window cache they are rotated
    before it, because there the row number differs from the position. Such a cache is staged (see `Layout`),
    because the operator writes behind the rows that it reads.
    """

    layout: LayoutName = OnnxTarget.layout

    def cached(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        position: torch.Tensor,
    ) -> Attended:
        assert rotation.table is not None
        last = (position + (q.shape[1] - 1)).to(torch.int32)
        total = last.max().reshape(1) + 1
        flat = (part.flatten(-2) for part in (q, k, v))
        tables, heads = (rotation.table.cos, rotation.table.sin), (q.shape[2], k.shape[2])
        out, k_cache, v_cache = group_query_attention(*flat, k_cache, v_cache, last, total, *tables, *heads)
        return out.reshape(q.shape), k_cache, v_cache

    def cache_update(
        self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int
    ) -> CacheUpdate:
        """Row of the last new key, int32 [1], and the bias of the scores [1, 1, S, total] or None."""
        history = window - 1
        if (
            cache.shape[2] == window
        ):  # one row per call once the cache is full: all rows before it are visible
            return (position.clamp(max=history) + (rows - 1)).to(torch.int32), None
        keys = torch.cat((ring_positions(history, position), position + torch.arange(rows)))
        last = torch.full_like(position, history - 1) + rows
        last = last.to(torch.int32)
        return last, torch.where(window_mask(keys, position, rows, window), 0.0, MASKED)[None, None]

    def sliding_window(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        update: CacheUpdate,
    ) -> Attended:
        last, bias = update
        flat, heads = (_rotated(q, rotation), _rotated(k, rotation), v.flatten(-2)), (q.shape[2], k.shape[2])
        out, k_cache, v_cache = biased_attention(*flat, k_cache, v_cache, last, last + 1, bias, *heads)
        return out.reshape(q.shape), k_cache, v_cache


def _rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [B, S, H, D] -> rotated [B, S, H·D], as one ONNX operator in place of ten."""
    rotated: torch.Tensor = torch.onnx.ops.rotary_embedding(
        x.flatten(-2), rotation.cos, rotation.sin, interleaved=True, num_heads=x.shape[2]
    )
    return rotated
