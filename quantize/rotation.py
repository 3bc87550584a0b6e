"""Rotations of the values of attention heads, so that their channels are not correlated.

Attention adds rows of values up and does not mix their channels. So W_o W_v = (W_o R^T)(R W_v) for each head
and any orthogonal R. If the channels of a head have a common part, each row of W_v is about as large as that
part, and its rounding error is too, which hides what the rows do not share. With the principal axes of the
values as R, the common part is one row with scales of its own.
"""

import torch

from voxport.quantize.inputs import InputRows
from voxport.quantize.parallel import one_thread
from voxport.quantize.schemes import Scheme


@torch.no_grad()
def principal_axes(values: torch.Tensor, heads: int, size: int) -> torch.Tensor:
    """Values behind attention [R, query heads * size] -> rotations [heads, size, size]; rows are axes."""
    by_head = values.double().reshape(len(values), heads, -1, size).movedim(1, 0).flatten(1, 2)
    with one_thread():
        axes = torch.linalg.eigh(by_head.mT @ by_head).eigenvectors.mT
    largest = axes.gather(2, axes.abs().argmax(2, keepdim=True))
    rotations: torch.Tensor = axes * largest.sign()  # a decomposition may give either sign
    return rotations.float()


@torch.no_grad()
def error_behind_output(
    scheme: Scheme, value: torch.Tensor, output: torch.Tensor, rows: InputRows, heads: int
) -> float:
    """The squared relative error that a quantised W_v leaves behind W_o, on held-out rows, if each row
    attends to itself.

    value [heads * size, K], output [N, query heads * size], float32; `rows` are inputs of W_v.
    """
    groups = output.reshape(len(output), heads, -1, len(value) // heads)
    joined = groups.sum(2).flatten(1)  # queries of a group read the same values
    with one_thread():
        expected = rows.held_out @ value.mT
        found = scheme.quantize(value, "", False, rows.importance).module(rows.held_out)
        return float((((found - expected) @ joined.mT).norm() / (expected @ joined.mT).norm()).square())
