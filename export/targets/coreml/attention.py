"""Attention over caches that are Core ML states."""

import torch

from bundle.spec import LayoutName
from export.targets.coreml.target import CoreMLTarget
from export.targets.tracing import MASKED
from model.layers.attention import Attended, AttentionKernel, ring_positions, window_mask
from model.layers.rope import Rotation

CacheUpdate = tuple[torch.Tensor, torch.Tensor]


class OneHotAttention(AttentionKernel):
    """Caches [1, H_kv, L, D]. Each call rewrites the whole cache with a one-hot product.

    Query heads keep an axis beside their groups (rank 5). Merging the two axes beside a dynamic S adds guards
    on strides.
    """

    layout: LayoutName = CoreMLTarget.layout

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
        at = (position + torch.arange(q.shape[1]))[:, None]  # [S, 1]
        slots = torch.arange(k_cache.shape[2])
        return self.sliding_window(q, k, v, rotation, k_cache, v_cache, (slots == at, slots > at))

    def cache_update(
        self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int
    ) -> CacheUpdate:
        """For a ring, two masks bool [S, L]: the row that each new row is written to, and the rows hidden
        from its query.
        """
        length = cache.shape[2]
        at = (position + torch.arange(rows))[:, None] % length
        hidden = window_mask(ring_positions(length, position + rows), position, rows, window).logical_not()
        return torch.arange(length) == at, hidden

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
        written, hidden = update
        q, k = rotation.both(q, k)
        rows, heads, head_dim = q.shape[1:]
        kv_heads = k_cache.shape[1]
        chosen = written.to(q.dtype)
        kept = 1 - chosen.sum(0)[:, None]  # [L, 1]
        spread = chosen.transpose(0, 1)[None, None]  # [1, 1, L, S]
        k_cache, v_cache = (
            cache * kept + spread @ new.transpose(1, 2) for cache, new in ((k_cache, k), (v_cache, v))
        )
        grouped = (q * head_dim**-0.5).transpose(1, 2).reshape(1, kv_heads, heads // kv_heads, rows, head_dim)
        # [1, H_kv, H / H_kv, S, L]
        scores = grouped @ k_cache[:, :, None].transpose(3, 4) + hidden.to(q.dtype) * MASKED
        out = scores.softmax(-1) @ v_cache[:, :, None]
        return out.permute(0, 3, 1, 2, 4).reshape(1, rows, heads, head_dim), k_cache, v_cache
