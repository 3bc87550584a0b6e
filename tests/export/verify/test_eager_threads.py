"""Torch's threads in the eager engine: one for small modules, because several wait for each other."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from voxport.export.verify.eager import EagerEngine


class Observed(nn.Module):
    """Weights of some MiB, which take no memory; notes the threads of a call."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size << 18, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.threads = torch.get_num_threads()
        return x


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("size", "threads"), [(63, 1), (64, 2)])
def test_a_small_module_has_one_thread(size: int, threads: int) -> None:
    module = Observed(size)
    EagerEngine([], lambda name: module, "BSHD").call("part", [torch.zeros(1)], [])
    assert module.threads == threads
    assert torch.get_num_threads() == 2
