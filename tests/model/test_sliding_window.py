"""Attention over a sliding-window cache, and the rotary table that has no end."""

import pytest
import torch

from voxport.bundle.spec import MAX_ROW_POSITION, LayoutName
from voxport.model.layers.attention import KVCache, Projected, ReferenceAttention
from voxport.model.layers.rope import RotaryTable, UnboundedRotaryTable


@pytest.mark.parametrize(
    ("rows", "window", "layout"),
    [(12, 9, "BSHD"), (9, 9, "BSHD"), (12, 9, "BHSD, staged"), (9, 9, "BHSD, staged"), (30, 9, "BHSD")],
)
def test_a_sliding_window_cache_equals_attention_over_the_window(
    rows: int, window: int, layout: LayoutName
) -> None:
    """The cache is overwritten three times. The reference is attention over all rows with the same mask."""
    torch.manual_seed(0)
    heads, kv_heads, width, length, step = 4, 2, 8, 60, rows - window + 1
    q, k, v = (torch.randn(1, length, count, width) for count in (heads, kv_heads, kv_heads))
    rotary = UnboundedRotaryTable(width, 1e4)
    kernel, shape = (
        ReferenceAttention(layout),
        (1, rows, kv_heads, width) if layout == "BSHD" else (1, kv_heads, rows, width),
    )
    k_cache, v_cache = torch.zeros(shape), torch.zeros(shape)
    found = []
    for start in range(0, length, step):
        part = slice(start, min(start + step, length))
        position = torch.tensor([start])
        rotation = rotary(torch.arange(part.start, part.stop)[None])
        update = kernel.cache_update(position, part.stop - part.start, k_cache, window)
        new = Projected(q[:, part], k[:, part], v[:, part], rotation)
        out, k_cache, v_cache = kernel.sliding_window(new, KVCache(k_cache, v_cache), update)
        found.append(out)
    whole = rotary(torch.arange(length)[None])
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    keys, values = (x.repeat_interleave(heads // kv_heads, 2).transpose(1, 2) for x in (whole(k), v))
    scores = (whole(q).transpose(1, 2) @ keys.transpose(2, 3) * width**-0.5).masked_fill(
        (distance < 0) | (distance >= window), -torch.inf
    )
    torch.testing.assert_close(
        torch.cat(found, 1), (scores.softmax(-1) @ values).transpose(1, 2), atol=1e-5, rtol=0
    )


def rolled(kernel: ReferenceAttention, rows: int, window: int = 5, step: int = 4) -> torch.Tensor:
    """Attention of 40 rows, 4 per call."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 40, 1, 4, generator=generator) for _ in range(3))
    caches = [torch.zeros(1, rows, 1, 4), torch.zeros(1, rows, 1, 4)]
    outs, rotary = [], UnboundedRotaryTable(4, 1e4)
    for start in range(0, 40, step):
        part = slice(start, start + step)
        rotation = rotary(torch.arange(start, start + step)[None])
        update = kernel.cache_update(torch.tensor([start]), step, caches[0], window)
        new = Projected(q[:, part], k[:, part], v[:, part], rotation)
        out, *caches = kernel.sliding_window(new, KVCache(*caches), update)
        outs.append(out)
    return torch.cat(outs, 1)


def test_a_ring_of_window_rows_is_too_small_for_several_rows_per_call() -> None:
    """With fewer than window + chunk - 1 rows, a chunk overwrites keys that its first queries need."""
    kernel = ReferenceAttention("BSHD")
    torch.testing.assert_close(rolled(kernel, 8), rolled(kernel, 30))
    for rows in (5, 7):
        assert (rolled(kernel, rows) - rolled(kernel, 30)).abs().max() > 0.1


def test_angles_from_two_tables_equal_angles_from_one() -> None:
    near, far = RotaryTable(16, 1e6, 20000), UnboundedRotaryTable(16, 1e6)
    positions = torch.tensor([[0, 1, 4095, 4096, 4097, 12345, 19999]])
    for name in ("cos", "sin"):
        torch.testing.assert_close(
            getattr(far(positions), name), getattr(near(positions), name), atol=1e-6, rtol=0
        )
    last = far(torch.tensor([[MAX_ROW_POSITION - 1]]))
    angle = (MAX_ROW_POSITION - 1) * 1e6 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    torch.testing.assert_close(last.cos[0, 0].double(), angle.cos(), atol=1e-6, rtol=0)
