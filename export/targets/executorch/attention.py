"""Attention with the llama operators of ExecuTorch, and RMSNorm without its power operator."""

from collections.abc import Sequence
from typing import Any

import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers torch.ops.llama

from bundle.spec import LayoutName
from export.targets.executorch.target import ExecuTorchTarget
from export.targets.tracing import MASKED
from model.layers.attention import Attended, AttentionKernel, ring_positions, window_mask
from model.layers.rope import Rotation


def rms_norm(x: torch.Tensor, widths: Sequence[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Squares are products: the power operator of ExecuTorch takes ten times as long."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


class LlamaAttention(AttentionKernel):
    """Caches [1, L, H_kv, D], written in place by `update_cache` and read by `custom_sdpa` up to the last
    position.
    """

    layout: LayoutName = ExecuTorchTarget.layout

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
        q, k = rotation.both(q, k)
        start: Any = position[0].item()  # Any: torch types a symbolic size as a number
        torch._check_is_size(start)
        torch._check(start < k_cache.shape[1])
        torch._check(start + q.shape[1] <= k_cache.shape[1])
        torch.ops.llama.update_cache(k, k_cache, start)
        torch.ops.llama.update_cache(v, v_cache, start)
        return _attend_up_to(q, k_cache, v_cache, start), k_cache, v_cache

    def cache_update(
        self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[int, int]:
        """Places of the new rows in the ring, int64 [1, S], and a mask [S, L].

        A ring of `window` rows takes one row per call and needs no mask, because every row is visible. Then
        the result is the place of that row and the number of rows before it.
        """
        length = cache.shape[1]
        if length > window:
            visible = window_mask(ring_positions(length, position + rows), position, rows, window)
            mask = torch.where(visible, 0.0, MASKED)
            return ((position + torch.arange(rows)) % length)[None], mask
        place: Any = (position % length)[0].item()
        before: Any = position.clamp(max=length - rows)[0].item()
        for value in (place, before):
            torch._check_is_size(value)
            torch._check(value + rows <= length)
        return place, before

    def sliding_window(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        update: tuple[torch.Tensor, torch.Tensor] | tuple[int, int],
    ) -> Attended:
        q, k = rotation.both(q, k)
        place, visible = update
        if isinstance(place, torch.Tensor):
            torch.ops.llama.update_cache_with_indices(k, k_cache, 0, place)
            torch.ops.llama.update_cache_with_indices(v, v_cache, 0, place)
            return _attend_to_all(q, k_cache, v_cache, visible), k_cache, v_cache
        torch.ops.llama.update_cache(k, k_cache, place)
        torch.ops.llama.update_cache(v, v_cache, place)
        return _attend_up_to(q, k_cache, v_cache, visible), k_cache, v_cache

    def uncached(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _attend_to_all(q, k, v, None)


def _attend_up_to(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int | torch.Tensor
) -> torch.Tensor:
    """Causal attention of queries [1, S, H, D], the first at row `start`, to the rows before it and their
    own.
    """
    attended: torch.Tensor = torch.ops.llama.custom_sdpa(q, keys, values, start, None, 0.0, True)
    return attended


def _attend_to_all(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: int | torch.Tensor | None
) -> torch.Tensor:
    """Attention to all rows. The operator reads as many rows as its start position and the number of queries
    add up to.
    """
    start = keys.shape[1] - q.shape[1]
    attended: torch.Tensor = torch.ops.llama.custom_sdpa(q, keys, values, start, mask, 0.0, False)
    return attended
