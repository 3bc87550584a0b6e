"""Which channels are made smaller in the inputs of linears, and larger in their weights (SmoothQuant, Xiao et
al. 2023; AWQ, Lin et al. 2024).

Rounding spreads the error of the largest value of a group over all others: in weights, and in activations
where a target rounds them too. With x' = x / s and W' = W · s for each channel, s = |x|^a / |W|^(1 - a) makes
both as even as `a` says: 0 evens the weights, 1 the inputs. The factors are powers of two, so nothing else
changes.
"""

from collections.abc import Sequence

import torch

from voxport.quantize.inputs import InputRows
from voxport.quantize.modules import (
    LinearKernel,
    QuantizedLinear,
    float_activations,
    int8_per_block,
    int8_per_token,
)
from voxport.quantize.parallel import one_thread
from voxport.quantize.schemes import Scheme

SHARES = (0.25, 0.5, 0.75)
# All targets get the same integers, so what is best for all kinds of arithmetic together is chosen.
KERNELS: tuple[LinearKernel, ...] = (float_activations, int8_per_block, int8_per_token)
SAMPLED = 512  # rows of a weight whose outputs are compared
LARGEST = 12  # exponents stay within float16


@torch.no_grad()
def candidates(inputs: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """Largest inputs and weights of each channel, float32 [width] -> exponents of the weights' channels."""
    x, w = inputs.clamp_min(1e-12).log2(), weights.clamp_min(1e-12).log2()
    found = [torch.zeros(len(x), dtype=torch.long)]
    for share in SHARES:
        moved = share * x - (1 - share) * w
        found.append((moved - moved.median()).round().clamp(-LARGEST, LARGEST).long())
    return found


@torch.no_grad()
def output_error(
    schemes: Sequence[Scheme], weights: Sequence[torch.Tensor], rows: InputRows, exponents: torch.Tensor
) -> float:
    """The squared relative error of what linears of one input give on held-out rows, in each arithmetic.

    weights [N, K] float32, exponents [K].
    """
    total = 0.0
    fit, held_out = (torch.ldexp(part, -exponents) for part in (rows.fit, rows.held_out))
    importance = InputRows(fit, held_out).importance
    with one_thread():
        for scheme, weight in zip(schemes, weights, strict=True):
            sampled = weight[:SAMPLED]
            module = scheme.quantize(torch.ldexp(sampled, exponents), "", False, importance).module
            expected = rows.held_out @ sampled.mT
            for kernel in KERNELS if isinstance(module, QuantizedLinear) else (None,):
                if kernel is not None:
                    assert isinstance(module, QuantizedLinear)
                    module.kernel = kernel
                total += float(((module(held_out) - expected).norm() / expected.norm()).square())
    return total
