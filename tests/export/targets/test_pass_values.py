"""Passes of ExecuTorch keep the values of nodes that they leave as they are, and compute the others."""

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.pass_base import ExportPass
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule

from export.targets.executorch.pass_values import values_kept


class Model(nn.Module):
    """Scalars, sizes that are symbols, a list of tensors, a constant and an operator with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0])
        y = self.linear(x * 2.5 + 1)
        y = torch.cat([y, y[:, 4:], torch.full((x.shape[0], 4), 0.5)], dim=1).sin()
        values, places = y.max(dim=1)
        return values.cos() + places + rows


def traced() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=9)
    return torch.export.export(Model(), (torch.rand(5, 8),), dynamic_shapes=({0: rows},))


@pytest.fixture
def program() -> torch.export.ExportedProgram:
    return traced()


def values(graph: GraphModule) -> list[str]:
    return [f"{node.target} {node.meta.get('val')}" for node in graph.graph.nodes if node.op != "output"]


class Changes(ExportPass):
    """Calls `after` with arguments changed by `change` in place of the operator `before`."""

    def __init__(self, before, after=None, change=lambda args: args):
        super().__init__()
        self.before, self.after, self.change = before, after or before, change

    def call_operator(self, op, args, kwargs, meta):
        if op == self.before:
            op, args = self.after, self.change(args)
        return super().call_operator(op, args, kwargs, meta)


ATEN = torch.ops.aten
CHANGES = {
    "nothing": (),
    "an operator": (ATEN.sin.default, ATEN.cos.default),
    "an operator, with another type": (ATEN.cos.default, ATEN.isnan.default),
    "a number": (ATEN.slice.Tensor, None, lambda args: (*args[:2], 6, *args[3:])),
    "a number that is added": (ATEN.max.dim, None, lambda args: (*args, True)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_pass_gives_the_values_that_it_would_compute(program, change):
    make = (lambda: Changes(*CHANGES[change])) if CHANGES[change] else ExportPass
    computed = values(make()(program.graph_module).graph_module)
    with values_kept():
        kept = values(make()(program.graph_module).graph_module)
    assert kept == computed
    assert (computed == values(program.graph_module)) == (change == "nothing")


def test_a_program_is_the_one_that_executorch_makes_alone():
    with torch.backends.mkldnn.flags(enabled=False):  # as in lowering
        alone = to_edge(traced()).to_executorch().buffer
        with values_kept():
            assert to_edge(traced()).to_executorch().buffer == alone


@pytest.mark.parametrize(("change", "computed"), [("nothing", set()), ("an operator", {ATEN.cos.default})])
def test_a_pass_computes_only_what_it_changes(program, change, computed, monkeypatch):
    """The nodes behind an operator with the same shape keep their values, too."""
    calls, dispatch = [], FakeTensorMode.dispatch

    def counting(self, function, *arguments):
        calls.append(function)
        return dispatch(self, function, *arguments)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counting)
    with values_kept():
        (Changes(*CHANGES[change]) if CHANGES[change] else ExportPass())(program.graph_module)
    assert {node.target for node in program.graph.nodes} & set(calls) == computed
