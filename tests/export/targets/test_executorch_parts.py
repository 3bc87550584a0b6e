"""Parts of a program that ExecuTorch passes to XNNPACK: which nodes they have, and where they are called."""

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from support.stand_ins import noting
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.passes.tools_common import legalize_graph

from voxport.export.targets.executorch import graph_order
from voxport.export.targets.executorch.partitioner import (
    LINEARS,
    ConvolutionPartitioner,
    LinearPartitioner,
    keep_convolution_weights,
)


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


def lowered(edge: EdgeProgramManager) -> Graph:
    graph = edge.to_backend(LinearPartitioner()).exported_program().graph
    graph.lint()
    found: Graph = graph
    return found


def test_nodes_that_a_part_puts_out_of_order_are_moved(
    edge: EdgeProgramManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part moves nodes of the one graph, which is never copied."""
    graphs, move = [], graph_order.move_late_nodes
    monkeypatch.setattr(
        graph_order, "move_late_nodes", noting(move, lambda module: graphs.append(module.graph))
    )
    monkeypatch.setattr(graph_order, "legalize_graph", lambda module: pytest.fail("the graph was copied"))
    with graph_order.late_nodes_moved():
        calls = [node.target.__name__ for node in lowered(edge).nodes if node.op == "call_function"]
    part = "executorch_call_delegate"
    layer = [part, "aten.cos.default", "aten.sin.default", "aten.mul.Tensor", part, "aten.add.Tensor"]
    assert [call for call in calls if call != "getitem"] == layer * 3
    assert len(graphs) == 6 and all(graph is graphs[0] for graph in graphs)


def test_a_program_sorted_once_is_the_one_that_executorch_sorts_after_each_part(
    edge: EdgeProgramManager,
) -> None:
    with graph_order.late_nodes_moved():
        once = edge.to_backend(LinearPartitioner())
    legalize_graph(once.exported_program().graph_module)
    found = []
    for graph in (once.exported_program().graph, lowered(edge)):
        nodes = [node for node in graph.nodes if node.op != "get_attr"]  # programs have no instruction for it
        places = {node: place for place, node in enumerate(nodes)}
        found.append(
            [(str(node.target), [places.get(source) for source in node.all_input_nodes]) for node in nodes]
        )
    assert found[0] == found[1]


def test_a_graph_is_sorted_where_a_part_precedes_its_input() -> None:
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


def test_parts_are_those_of_executorch(edge: EdgeProgramManager) -> None:
    """Also their order and numbers."""
    tags = []
    for partitioner in (LinearPartitioner(), XnnpackPartitioner(configs=LINEARS)):
        for node in edge.exported_program().graph.nodes:
            node.meta.pop("delegation_tag", None)
        partitions = partitioner.generate_partitions(edge.exported_program())
        tags.append({part.id: sorted(node.name for node in part.nodes) for part in partitions})
    ours, theirs = tags
    assert ours == theirs and list(ours) == list(theirs) and len(ours) == 6


class Convolutions(nn.Module):
    """A dilated convolution, a depthwise one, a strided one, and one with weights outside the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated, self.depthwise = nn.Conv1d(4, 6, 3, dilation=2), nn.Conv1d(6, 6, 3, groups=6)
        self.strided = nn.Conv1d(6, 8, 4, stride=2)
        self.taps = nn.Buffer(torch.randn(4, 8, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(self.strided(self.depthwise(self.dilated(x)).sin()), self.taps)


@pytest.mark.slow
def test_all_convolutions_are_parts_and_compute_the_same() -> None:
    torch.manual_seed(0)
    module, x = Convolutions(), torch.randn(1, 4, 40)
    axes = {2: torch.export.Dim("columns", min=16, max=64)}
    program = torch.export.export(module, (x,), dynamic_shapes=(axes,))
    keep_convolution_weights(program)
    edge = to_edge(program).to_backend(ConvolutionPartitioner())
    calls = [str(node.target) for node in edge.exported_program().graph.nodes]
    assert not [call for call in calls if "convolution" in call]
    content = edge.to_executorch().buffer  # which the loaded program reads
    loaded = _load_for_executorch_from_buffer(content)
    for columns in (16, 40, 64):
        x = torch.randn(1, 4, columns)
        torch.testing.assert_close(loaded.forward((x,))[0], module(x))
