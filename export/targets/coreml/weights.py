"""Quantised weights for the Core ML converter, and the arithmetic of products. Without coremltools."""

import torch
import torch.nn.functional as F
from torch import nn

from quantize.modules import PalettizedLinear, QuantizedLinear
from quantize.search import SMALLEST_SCALE

PALETTIZATION = 2  # coremltools' number for this kind of compression
# The only two ranges that the converter takes. They contain the integers of a scheme.
RANGES = {4: (-8, 7), 8: (-128, 127)}


def lower_linear(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N] with dequantised weights, and activations as the scheme asks. For eager mode and
    for lowering.
    """
    if linear.scheme.activations == "int8":
        x = _int8_rows(x)
    if not torch.compiler.is_exporting():
        return linear.multiply(x)  # the same numbers, computed for a few rows at a time
    low, high = RANGES[linear.scheme.bits]
    weight = torch.ops.torchao.dequantize_affine(
        linear.constant, [1, linear.block], linear.scale, None, torch.int8, low, high
    )
    return F.linear(x, weight, linear.bias)


def _int8_rows(x: torch.Tensor) -> torch.Tensor:
    """The activations of `int8_per_token` in plain operators. The scale is at least the smallest normal
    float16.

    x is divided by the scale and not multiplied by its reciprocal, because the converter adds 1e-4 to what it
    inverts. The zero point is -128 - `least`. It cancels except in the upper bound, because no value lies
    below `low`.
    """
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=SMALLEST_SCALE)
    least = torch.round(low / scale)
    return torch.minimum(torch.round(x / scale), least + 255) * scale


def register_palettes(module: nn.Module) -> None:
    """Adds the buffers from which the converter reads how a weight is compressed."""
    for part in module.modules():
        if isinstance(part, PalettizedLinear):
            part.register_buffer("_COREML_/weight/compression_type", torch.tensor([PALETTIZATION]))
            # [N / channels, 1, values, 1]
            part.register_buffer("_COREML_/weight/lut", part.get_buffer("palette")[:, None, :, None])
