"""Rotations of the values of heads: the axes, and what they bring where channels have a common part."""

import torch

from voxport.quantize.inputs import InputRows
from voxport.quantize.rotation import error_behind_output, principal_axes
from voxport.quantize.schemes import IntegerScheme

HEADS, SIZE, QUERIES, WIDTH = 2, 32, 4, 256


def weights() -> tuple[torch.Tensor, torch.Tensor, InputRows]:
    """A projection of values whose heads have a common part of eight times their own, the linear behind
    attention, which takes it away again, and inputs.
    """
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(HEADS, SIZE, WIDTH, generator=generator)
    common = torch.randn(HEADS, 1, WIDTH, generator=generator)
    output = torch.randn(64, QUERIES, SIZE, generator=generator)
    output -= output.mean(-1, keepdim=True)
    rows = InputRows.of(torch.randn(1024, WIDTH, generator=generator))
    return (own + 8 * common).flatten(0, 1), output.flatten(1), rows


def test_axes_are_those_of_the_values_of_each_head() -> None:
    """[1, 1] and [1, -1] are the axes of two channels that have a common part."""
    x = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    heads = torch.stack([3 * x[0] + x[1], 3 * x[0] - x[1], x[0], 5 * x[1]], dim=1)
    found = principal_axes(heads, 2, 2)
    expected = [[[-1, 1], [1, 1]], [[1, 0], [0, 1]]]
    scale = torch.tensor([2**-0.5, 1.0])[:, None, None]
    torch.testing.assert_close(found.abs(), (scale * torch.tensor(expected)).abs(), atol=0.05, rtol=0)
    torch.testing.assert_close(found @ found.mT, torch.eye(2).expand(2, 2, 2))


def test_a_common_part_of_the_channels_costs_nothing_in_its_own_channel() -> None:
    value, output, rows = weights()
    scheme = IntegerScheme(4, 32)
    values = (rows.fit @ value.mT).unflatten(1, (HEADS, SIZE)).repeat_interleave(QUERIES // HEADS, 1)
    rotations = principal_axes(values.flatten(1), HEADS, SIZE)
    turned = torch.einsum("hij,hjk->hik", rotations, value.unflatten(0, (HEADS, SIZE))).flatten(0, 1)
    columns = rotations.repeat_interleave(QUERIES // HEADS, 0)
    read = torch.einsum("hij,nhj->nhi", columns, output.unflatten(1, (QUERIES, SIZE))).flatten(1)
    before = error_behind_output(scheme, value, output, rows, HEADS)
    assert error_behind_output(scheme, turned, read, rows, HEADS) < before / 10
