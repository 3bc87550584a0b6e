"""Attention with the llama operators of ExecuTorch, and RMSNorm without its power operator."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers torch.ops.llama

from voxport.bundle.spec import MASKED_SCORE
from voxport.model.layers.attention import (
    Attended,
    AttentionKernel,
    KVCache,
    Projected,
    ring_positions,
    window_mask,
)

RingUpdate = tuple[torch.Tensor, torch.Tensor] | tuple[int, int]
# `attend(q, keys, values, start, mask, dropout, is_causal)`: the first query [1, S, H, D] is at row `start`.
# The operator reads `start` + S rows: with `is_causal` up to the row of each query, else all of them.
attend: Callable[..., torch.Tensor] = torch.ops.llama.custom_sdpa


def rms_norm(x: torch.Tensor, widths: Sequence[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Squares are products: the power operator of ExecuTorch takes ten times as long."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


class LlamaAttention(AttentionKernel[RingUpdate]):
    """Caches [1, L, H_kv, D], written in place by `update_cache` and read by `custom_sdpa` up to the last
    position.
    """

    def cached(self, new: Projected, cache: KVCache, position: torch.Tensor) -> Attended:
        (q, k), v = new.rotation.both(new.q, new.k), new.v
        k_cache, v_cache = cache
        start: Any = position[0].item()  # Any: torch types a symbolic size as a number
        torch._check_is_size(start)
        torch._check(start < k_cache.shape[1])
        torch._check(start + q.shape[1] <= k_cache.shape[1])
        torch.ops.llama.update_cache(k, k_cache, start)
        torch.ops.llama.update_cache(v, v_cache, start)
        return attend(q, k_cache, v_cache, start, None, 0.0, True), k_cache, v_cache

    def cache_update(self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int) -> RingUpdate:
        """Places of the new rows in the ring, int64 [1, S], and a mask [S, L].

        A ring of `window` rows takes one row per call and needs no mask, because every row is visible. Then
        the result is the place of that row and the number of rows before it.
        """
        length = cache.shape[1]
        if length > window:
            visible = window_mask(ring_positions(length, position + rows), position, rows, window)
            return ((position + torch.arange(rows)) % length)[None], torch.where(visible, 0.0, MASKED_SCORE)
        place: Any = (position % length)[0].item()
        before: Any = position.clamp(max=length - rows)[0].item()
        for value in (place, before):
            torch._check_is_size(value)
            torch._check(value + rows <= length)
        return place, before

    def sliding_window(self, new: Projected, cache: KVCache, update: RingUpdate) -> Attended:
        (q, k), v = new.rotation.both(new.q, new.k), new.v
        (k_cache, v_cache), (place, visible) = cache, update
        if isinstance(place, torch.Tensor):
            torch.ops.llama.update_cache_with_indices(k, k_cache, 0, place)
            torch.ops.llama.update_cache_with_indices(v, v_cache, 0, place)
            before = k_cache.shape[1] - q.shape[1]
            return attend(q, k_cache, v_cache, before, visible, 0.0, False), k_cache, v_cache
        torch.ops.llama.update_cache(k, k_cache, place)
        torch.ops.llama.update_cache(v, v_cache, place)
        return attend(q, k_cache, v_cache, visible, None, 0.0, True), k_cache, v_cache

    def uncached(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, k.shape[1] - q.shape[1], None, 0.0, False)
