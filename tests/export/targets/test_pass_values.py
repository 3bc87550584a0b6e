"""Passes of ExecuTorch keep the values of nodes that they leave as they are, and compute the others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.pass_base import ExportPass
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from voxport.export.targets.executorch.partitioner import ConvolutionPartitioner, LinearPartitioner
from voxport.export.targets.executorch.pass_values import values_kept


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


def traced(module: nn.Module | None = None) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=9)
    return torch.export.export(module or Model(), (torch.rand(5, 8),), dynamic_shapes=({0: rows},))


def values(graph: GraphModule) -> list[str]:
    return [f"{node.target} {node.meta.get('val')}" for node in graph.graph.nodes if node.op != "output"]


class Changes(ExportPass):  # type: ignore[misc]  # executorch has no types
    """Calls `after` with arguments changed by `change` in place of the operator `before`."""

    def __init__(
        self,
        before: OpOverload,
        after: OpOverload | None = None,
        change: Callable[[Any], Any] = lambda args: args,
    ) -> None:
        super().__init__()
        self.before, self.after, self.change = before, after or before, change

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        if op == self.before:
            op, args = self.after, self.change(args)
        return super().call_operator(op, args, kwargs, meta)


ATEN = torch.ops.aten
CHANGES: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "an operator": (ATEN.sin.default, ATEN.cos.default),
    "an operator, with another type": (ATEN.cos.default, ATEN.isnan.default),
    "a number": (ATEN.slice.Tensor, None, lambda args: (*args[:2], 6, *args[3:])),
    "a number that is added": (ATEN.max.dim, None, lambda args: (*args, True)),
}


class ChangesInPlace(ExportPass):  # type: ignore[misc]  # executorch has no types
    """Changes a number of a node and leaves its value, before the nodes are called."""

    def call(self, graph_module: GraphModule) -> PassResult:
        (node,) = graph_module.graph.find_nodes(op="call_function", target=ATEN.slice.Tensor)
        node.args = (*node.args[:2], 6, *node.args[3:])
        found: PassResult = super().call(graph_module)
        return found


def a_pass(change: str) -> ExportPass:
    if change == "a number in place":
        return ChangesInPlace()
    return Changes(*CHANGES[change]) if CHANGES[change] else ExportPass()


@pytest.mark.parametrize("change", [*CHANGES, "a number in place"])
def test_a_pass_gives_the_values_that_it_would_compute(change: str) -> None:
    def values_after(graph: GraphModule) -> list[str]:
        return values(a_pass(change)(ExportPass()(graph).graph_module).graph_module)

    computed = values_after(traced().graph_module)
    with values_kept():
        assert values_after(traced().graph_module) == computed
    assert (computed == values(traced().graph_module)) == (change == "nothing")


class Parts(nn.Module):
    """A linear and a convolution for XNNPACK, and a sine between them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8).requires_grad_(False)
        self.convolution = nn.Conv1d(1, 2, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.convolution(self.linear(x).sin()[:, None])
        return found


@pytest.mark.slow
def test_a_program_is_the_one_that_executorch_makes_alone() -> None:
    def lowered(module: nn.Module) -> bytes:
        edge = to_edge(traced(module))
        edge = edge.to_backend(LinearPartitioner()).to_backend(ConvolutionPartitioner())
        return bytes(edge.to_executorch().buffer)

    with torch.backends.mkldnn.flags(enabled=False):  # as in lowering
        for module in (Model(), Parts()):
            alone = lowered(module)
            with values_kept():
                assert lowered(module) == alone


@pytest.mark.parametrize(("change", "computed"), [("nothing", set()), ("an operator", {ATEN.cos.default})])
def test_a_pass_computes_only_what_it_changes(
    change: str, computed: set[OpOverload], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes behind an operator with the same shape keep their values, too."""
    calls, dispatch = [], FakeTensorMode.dispatch

    def counting(self: FakeTensorMode, function: OpOverload, *arguments: Any) -> Any:
        calls.append(function)
        return dispatch(self, function, *arguments)

    graph = traced().graph_module
    with values_kept():
        graph = ExportPass()(graph).graph_module
        monkeypatch.setattr(FakeTensorMode, "dispatch", counting)
        a_pass(change)(graph)
    assert {node.target for node in graph.graph.nodes} & set(calls) == computed
