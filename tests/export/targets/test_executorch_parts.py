"""Parts of a program that ExecuTorch passes to XNNPACK: which nodes they have, and where they are called."""

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from export.targets.executorch import graph_order
from export.targets.executorch.partitioner import LINEARS, LinearPartitioner


class Branches(nn.Module):
    """In each layer, one linear for the queries and keys; and a node between them that needs the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(9))

    def forward(self, x: Tensor) -> Tensor:
        for first, second, third in zip(*[iter(self.linears)] * 3, strict=True):
            early = torch.sin(torch.cos(first(x)))
            late = second(x)
            x = torch.sigmoid(third(early * late)) + late
        return x


@pytest.fixture
def edge() -> EdgeProgramManager:
    torch.manual_seed(0)
    return to_edge(torch.export.export(Branches(), (torch.rand(1, 8),)))


def lowered_names(edge: EdgeProgramManager) -> list[str]:
    graph = edge.to_backend(LinearPartitioner()).exported_program().graph
    graph.lint()
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return [node.target.__name__ for node in calls if node.target.__name__ != "getitem"]


def test_nodes_that_a_part_puts_out_of_order_are_moved(edge, monkeypatch):
    """Sorting is tried for each part, and never copies the graph."""
    sorted_graphs, move = [], graph_order.move_late_nodes
    monkeypatch.setattr(
        graph_order, "move_late_nodes", lambda graph: sorted_graphs.append(graph) or move(graph)
    )
    monkeypatch.setattr(graph_order, "legalize_graph", lambda graph: pytest.fail("the graph was copied"))
    call = "executorch_call_delegate"
    with graph_order.order_kept():
        names = lowered_names(edge)
    layer = [call, "aten.cos.default", "aten.sin.default", "aten.mul.Tensor", call, "aten.add.Tensor"]
    assert names == layer * 3
    assert len(sorted_graphs) == 6 and all(graph is sorted_graphs[0] for graph in sorted_graphs)


def test_a_moved_program_has_the_calls_of_a_sorted_one(edge):
    with graph_order.order_kept():
        names = lowered_names(edge)
    assert sorted(names) == sorted(lowered_names(edge))


def test_a_graph_is_sorted_where_a_part_precedes_its_input():
    graph = Graph()
    x = graph.placeholder("x")
    part = graph.call_module("part", (x,))
    graph.output((part,))
    with graph.inserting_after(part):
        part.args = (graph.call_function(torch.neg, (x,)),)
    module = graph_order.move_late_nodes(GraphModule({"part": nn.Identity()}, graph))
    module.graph.lint()
    assert [node.op for node in module.graph.nodes] == [
        "placeholder",
        "call_function",
        "call_module",
        "output",
    ]


def test_parts_are_those_of_executorch(edge):
    """The copies of its algorithm differ only in time."""
    tags = []
    for partitioner in (LinearPartitioner(), XnnpackPartitioner(configs=LINEARS)):
        for node in edge.exported_program().graph.nodes:
            node.meta.pop("delegation_tag", None)
        partitions = partitioner.generate_partitions(edge.exported_program())
        tags.append({part.id: sorted(node.name for node in part.nodes) for part in partitions})
    ours, theirs = tags
    assert ours == theirs and list(ours) == list(theirs) and len(ours) == 6
