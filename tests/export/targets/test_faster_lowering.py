"""What lowering changes in its tools to take less time."""

import inspect
import operator
from typing import Any

import pytest
import torch
from support.stand_ins import noting
from torch.fx import GraphModule, symbolic_trace
from voxport.export.targets.onnx.registry import registry_read_once

from voxport.export import memory
from voxport.export.targets.graph_code import lazily_compiled_graphs, without_stack_traces


def test_a_graph_computes_what_it_holds_when_it_is_called() -> None:
    with lazily_compiled_graphs():
        graph = symbolic_trace(lambda a, b: a + b)
        (added,) = (node for node in graph.graph.nodes if node.target is operator.add)
        added.target = operator.mul
        graph.recompile()
        assert graph(3, 4) == 12
        added.target = operator.sub
        graph.recompile()
    assert graph(3, 4) == -1, "a graph that was changed within is compiled after it"


def test_a_graph_without_code_has_the_names_of_its_arguments() -> None:
    """torch.export reads them to check inputs, here that `second` has an even number of rows."""

    class Halves(torch.nn.Module):
        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return first + second.reshape(2, -1, 3).sum(0)

    rows = torch.export.Dim("rows", min=1, max=50)
    with lazily_compiled_graphs():
        program = torch.export.export(
            Halves(),
            (torch.ones(2, 3), torch.ones(4, 3)),
            dynamic_shapes=({0: rows}, {0: 2 * rows}),
            strict=False,
        )
        module = program.run_decompositions({}).module()
        assert list(inspect.signature(module.forward).parameters) == ["first", "second"]
        assert module(torch.ones(5, 3), torch.ones(10, 3)).eq(3).all()


def test_traced_nodes_have_no_stack_traces_within() -> None:
    def with_traces() -> list[torch.fx.Node]:
        program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=False)
        return [node for node in program.graph.nodes if node.meta.get("stack_trace")]

    with pytest.raises(ZeroDivisionError), without_stack_traces():
        assert not with_traces()
        raise ZeroDivisionError
    assert with_traces()


def test_graphs_have_no_code_before_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_code = torch.fx.graph_module._forward_from_src
    monkeypatch.setattr(
        "torch.fx.graph_module._forward_from_src", noting(compile_code, lambda *_: compiled.append(1))
    )
    with lazily_compiled_graphs():
        graph = GraphModule({}, symbolic_trace(lambda a: -a).graph)
        graph.recompile()
        assert not compiled
        assert graph(2) == -2 and graph(3) == -3
        assert len(compiled) == 1
    graph.recompile()
    assert len(compiled) == 2


def test_a_translation_of_one_export_is_not_in_the_next() -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = ONNXRegistry.from_torchlib
    with registry_read_once():
        first = ONNXRegistry().from_torchlib(opset_version=23)
        functions: dict[Any, Any] = first.functions
        target, found = next(iter(functions.items()))
        before = list(found)
        first.register_op(target, lambda a, b: a)
        assert first.functions[target] != before
        assert ONNXRegistry().from_torchlib(opset_version=23).functions[target] == before
    assert ONNXRegistry.from_torchlib == read


@pytest.mark.parametrize(
    ("resident", "collections"),
    [
        ([1.4, 1.4], 0),  # GB: less than is kept
        ([1.6, 1.5, 1.7], 1),  # the third is 0.2 GB above the second
        ([1.6, 1.5, 1.8, 1.6], 2),
        ([1.6, 1.5, 0.9, 1.55, 1.4], 2),  # memory that others returned is taken again
    ],
)
def test_memory_is_returned_where_much_was_taken_since_the_last_time(
    resident: list[float], collections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each collection is followed by one more reading."""
    readings, found = iter([gigabytes * 1e9 for gigabytes in resident]), []
    monkeypatch.setattr(memory, "_resident_after_return", 0)
    monkeypatch.setattr(memory, "_resident", lambda: next(readings))
    monkeypatch.setattr("gc.collect", lambda: found.append(1))
    with pytest.raises(StopIteration):
        while True:
            memory.free_memory()
    assert len(found) == collections
