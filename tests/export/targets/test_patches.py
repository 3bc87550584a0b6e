"""Patches of toolchains: the same programs as without them, and when each of them can go.

The docstring of a test that asks whether a cause is still there is the text of an issue for the tool.
"""

import copy
import inspect

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge
from executorch.exir.backend import backend_api
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from executorch.exir.lowered_backend_module import create_submodule_from_nodes
from onnxscript.rewriter import _matcher
from support.stand_ins import noting
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.fx.passes.tools_common import legalize_graph

from voxport.export.targets.executorch import patches
from voxport.export.targets.executorch.lowering import LINEARS, LinearPartitioner
from voxport.export.targets.executorch.patches import shared_weights


def test_the_causes_of_the_patches_are_there() -> None:
    """If an assertion fails, delete the patch that it names.

    - `late_nodes_moved`. ExecuTorch, `create_submodule_from_nodes`: `to_backend` calls `legalize_graph` for
      each partition, which copies every node of the owning graph. Lowering n nodes into p delegates takes
      O(n p). Pass `skip_legalize_graph=True` there and sort once, after the last partition.
    - `FastPartitioner`. ExecuTorch, `GroupBasedPartitioner`: merging computes the nodes downstream of a
      partition anew for each pair of partitions. Keep them as sets, one for each partition.
    - `shared_weights`. ExecuTorch, `to_backend`: deep copies the program with its weights, although
      partitioning only tags nodes. Copy the graph, and share the state dict.
    - `SLICES_TO_SPLIT`. onnxscript, `SimplePatternMatcher`: a pattern with several outputs is searched in all
      combinations of nodes of the graph, for every node that the rule is tried on.
    """
    assert "legalize_graph(" in inspect.getsource(create_submodule_from_nodes), "late_nodes_moved"
    assert "_can_merge_partitions" in inspect.getsource(GroupBasedPartitioner), "FastPartitioner"
    assert "copy.deepcopy(edge_program)" in inspect.getsource(backend_api), "shared_weights"
    assert "itertools.product(" in inspect.getsource(_matcher), "SLICES_TO_SPLIT"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.ones(2))  # as quantised weights are

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_a_copied_program_shares_its_weights_within() -> None:
    program = torch.export.export(Scaled(), (torch.ones(2),))
    with shared_weights():
        within = copy.deepcopy(program)
    after = copy.deepcopy(program)
    places = [found.state_dict["weight"].data_ptr() for found in (program, within, after)]
    assert places[0] == places[1] != places[2]


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
    graphs, move = [], patches.move_late_nodes
    monkeypatch.setattr(patches, "move_late_nodes", noting(move, lambda module: graphs.append(module.graph)))
    monkeypatch.setattr(patches, "legalize_graph", lambda module: pytest.fail("the graph was copied"))
    with patches.late_nodes_moved():
        calls = [node.target.__name__ for node in lowered(edge).nodes if node.op == "call_function"]
    part = "executorch_call_delegate"
    layer = [part, "aten.cos.default", "aten.sin.default", "aten.mul.Tensor", part, "aten.add.Tensor"]
    assert [call for call in calls if call != "getitem"] == layer * 3
    assert len(graphs) == 6 and all(graph is graphs[0] for graph in graphs)


def test_a_program_sorted_once_is_the_one_that_executorch_sorts_after_each_part(
    edge: EdgeProgramManager,
) -> None:
    with patches.late_nodes_moved():
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


def test_a_graph_is_sorted_if_a_part_precedes_its_input() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    part = graph.call_module("part", (x,))
    graph.output((part,))
    with graph.inserting_after(part):
        part.args = (graph.call_function(torch.neg, (x,)),)
    module = patches.move_late_nodes(GraphModule({"part": nn.Identity()}, graph))
    module.graph.lint()
    assert [node.op for node in module.graph.nodes] == [
        "placeholder",
        "call_function",
        "call_module",
        "output",
    ]


def test_parts_are_those_of_executorch(edge: EdgeProgramManager) -> None:
    """Their order and numbers are equal, too."""
    tags = []
    for partitioner in (LinearPartitioner(), XnnpackPartitioner(configs=LINEARS)):
        for node in edge.exported_program().graph.nodes:
            node.meta.pop("delegation_tag", None)
        partitions = partitioner.generate_partitions(edge.exported_program())
        tags.append({part.id: sorted(node.name for node in part.nodes) for part in partitions})
    ours, theirs = tags
    assert ours == theirs and list(ours) == list(theirs) and len(ours) == 6
