"""What the targets Core ML and Core AI share, in plain torch: attention, products, the order of weights."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from voxport.bundle.errors import ExportError
from voxport.bundle.spec import MASKED_SCORE, Kind
from voxport.export.targets.shared import example_inputs, target_kernels, zero_states
from voxport.model.graph import Component
from voxport.model.layers.attention import (
    Attended,
    AttentionKernel,
    KVCache,
    Projected,
    ring_positions,
    window_mask,
)
from voxport.quantize.modules import PalettizedLinear, QuantizedEmbedding, QuantizedLinear
from voxport.quantize.search import SMALLEST_SCALE

Linear = QuantizedLinear | PalettizedLinear
Compressed = Linear | QuantizedEmbedding
Array = npt.NDArray[Any]  # integers or floats
Weight = Callable[[], tuple[Array, Array]]  # reads integers and scales, or indices and palettes
CacheUpdate = tuple[torch.Tensor, torch.Tensor]
MAX_FLOAT16 = float(np.finfo(np.float16).max)
# Outputs that are rounded to codes. A float16 program computes them in float32 from the last product on.
FLOAT32_KINDS = (Kind.LOGITS, Kind.LATENT)


class OneHotAttention(AttentionKernel[CacheUpdate]):
    """Caches [1, H_kv, L, D]. Each call rewrites the whole cache with a one-hot product.

    Query heads keep an axis beside their groups (rank 5). Merging the two axes beside a dynamic S adds guards
    on strides.
    """

    def cached(self, new: Projected, cache: KVCache, position: torch.Tensor) -> Attended:
        at = (position + torch.arange(new.q.shape[1]))[:, None]  # [S, 1]
        slots = torch.arange(cache.k.shape[2])
        return self.sliding_window(new, cache, (slots == at, slots > at))

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

    def sliding_window(self, new: Projected, cache: KVCache, update: CacheUpdate) -> Attended:
        written, hidden = update
        q, k = new.rotation.both(new.q, new.k)
        rows, heads, head_dim = q.shape[1:]
        kv_heads = cache.k.shape[1]
        chosen = written.to(q.dtype)
        kept = 1 - chosen.sum(0)[:, None]  # [L, 1]
        spread = chosen.transpose(0, 1)[None, None]  # [1, 1, L, S]
        k_cache, v_cache = (
            old * kept + spread @ part.transpose(1, 2) for old, part in zip(cache, (k, new.v), strict=True)
        )
        grouped = (q * head_dim**-0.5).transpose(1, 2).reshape(1, kv_heads, heads // kv_heads, rows, head_dim)
        # [1, H_kv, H / H_kv, S, L]
        scores = grouped @ k_cache[:, :, None].transpose(3, 4) + hidden.to(q.dtype) * MASKED_SCORE
        out = scores.softmax(-1) @ v_cache[:, :, None]
        return out.permute(0, 3, 1, 2, 4).reshape(1, rows, heads, head_dim), k_cache, v_cache


def dequantized_linear(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N] with dequantised weights, and activations as the scheme asks."""
    return linear.multiply(rounded_activations(x, linear))  # dequantises a few rows at a time


def rounded_activations(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    """x, or what `int8_per_token` makes of it if the scheme asks for integer activations."""
    return _int8_rows(x) if linear.scheme.integer_activations(False) else x


@contextmanager
def traced_weights(module: nn.Module, weight_of: Callable[[Linear], torch.Tensor]) -> Iterator[None]:
    """Sets the kernels below `module` for one trace. `weight_of` makes the floats [N, K] of a linear.

    They are made once, however often the trace calls the linear. The 15 steps of a predictor would add them
    15 times, and a converter would compare and merge all of them. Palettized linears have no kernel to set.
    Their `forward` is replaced.
    """
    once = cache(weight_of)
    kernel = lambda x, linear: F.linear(rounded_activations(x, linear), once(linear), linear.bias)
    palettized = [part for part in module.modules() if isinstance(part, PalettizedLinear)]
    for part in palettized:
        part.forward = partial(kernel, linear=part)  # type: ignore[method-assign]
    try:
        with torch.no_grad(), target_kernels(module, kernel, OneHotAttention()):
            yield
    finally:
        for part in palettized:
            del part.forward


def _int8_rows(x: torch.Tensor) -> torch.Tensor:
    """The activations of `int8_per_token` in plain operators. The scale is at least the smallest normal
    float16.

    x is divided by the scale and not multiplied by its reciprocal, because Core ML's converter adds 1e-4 to
    what it inverts. The zero point is -128 - `least`. It cancels except in the upper bound, because no value
    lies below `low`.
    """
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=SMALLEST_SCALE)
    least = torch.round(low / scale)
    return torch.minimum(torch.round(x / scale), least + 255) * scale


def split_factor(x: torch.Tensor, factor: Any) -> Any:
    """Splits a factor that is inexact in float16, such as 1 / sqrt(128), into the sum of two float16 values.

    `factor` is a number or a tensor. NotImplemented keeps the operator.
    """
    if not isinstance(factor, float) or not x.is_floating_point():
        return NotImplemented
    near = float(np.float16(factor)) if abs(factor) < MAX_FLOAT16 else factor
    rest = float(np.float16(factor - near))
    return x * near + x * rest if rest else NotImplemented


def called_modules(component: Component, module: nn.Module) -> list[tuple[str, Compressed]]:
    """The quantised modules in the order of their calls, found by a run without products."""
    called: list[tuple[str, Compressed]] = []
    inputs = example_inputs(component, {dim: low for dim, (low, _) in component.signature.dims.items()})
    zeros = lambda x, linear: x.new_zeros(*x.shape[:-1], linear.out_features)
    with torch.no_grad(), target_kernels(module, zeros, OneHotAttention()), ExitStack() as hooks:
        for name, part in module.named_modules():
            if isinstance(part, Compressed):
                hook = part.register_forward_pre_hook(lambda part, _, name=name: called.append((name, part)))
                hooks.enter_context(hook)
        module(*inputs.values(), *zero_states(component))
    return called


def check_weight(what: str, found: Weight, module: Compressed) -> None:
    if not all(map(np.array_equal, found(), integers_and_scales(module))):
        raise ExportError(f"{what} differ from the module")


def integers_and_scales(module: Compressed) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(module, PalettizedLinear):
        return module.indices, module.palette  # before it is packed
    return module.integers() if isinstance(module, QuantizedLinear) else module.weight, module.scale
