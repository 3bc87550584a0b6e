"""Choice of the parts of a program that XNNPACK computes: linears, of every precision, and convolutions."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from executorch.backends.xnnpack.partition.config.gemm_configs import (
    AddmmConfig,
    ConvolutionConfig,
    LinearConfig,
    MMConfig,
)
from executorch.backends.xnnpack.partition.config.generic_node_configs import SigmoidConfig
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.passes.infra.partitioner import Partition

# With everything that XNNPACK takes, slices and reshapes cut the codec of the golden checkpoint into 157
# delegates, and lowering takes twice as long.
LINEARS = [LinearConfig, AddmmConfig, MMConfig, SigmoidConfig]


class _FastPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # executorch has no types
    """Partitioner that makes the partitions of `XnnpackPartitioner` in less time."""

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        """Merges parts that can be computed at once.

        `GroupBasedPartitioner` of ExecuTorch makes the same choice, but reads the set of all nodes that
        follow a part anew for each pair of parts.
        """
        parts = _parts(ep.graph, [set(group) for group in self.get_matched_nodes_from_configs(ep)])
        return [Partition(id=part.number, nodes=part.nodes) for part in _merged(parts)]


class LinearPartitioner(_FastPartitioner):
    """Partitioner for linears.

    The compile option makes XNNPACK run the one pass for linears, of 17, on each delegate.
    """

    def __init__(self) -> None:
        super().__init__(configs=LINEARS)
        options = [CompileSpec("dqlinear_partitioner", b"")]
        self.delegation_spec: DelegationSpec = DelegationSpec(XnnpackBackend.__name__, options)


class ConvolutionPartitioner(_FastPartitioner):
    """Partitioner for convolutions. ExecuTorch's own kernel takes a hundred times as long.

    It comes after `LinearPartitioner`, because convolutions need all passes of XNNPACK. Activations are not
    taken: with them the codec of Qwen3-TTS is a tenth faster, but has twice as many parts to lower.
    """

    def __init__(self) -> None:
        super().__init__(configs=[ConvolutionConfig])


def keep_convolution_weights(program: ExportedProgram) -> None:
    """Moves weights of convolutions that are buffers outside the state dict into it.

    XNNPACK gives weights of one axis a second one, and writes them to the state dict.
    """
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.conv1d.default):
        spec = specs.get(node.args[1].name)  # none for a weight that the program computes
        if spec and spec.persistent is False:
            spec.persistent = True
            program.state_dict[spec.target] = program.constants.pop(spec.target)


@dataclass
class _Part:
    """Nodes of a part. Sets of nodes are integers with a bit for each node of the graph."""

    number: int
    nodes: list[Node]
    own: int
    users: int
    sources: int  # every node that one of its nodes needs, also through others

    def merge(self, other: "_Part") -> bool:
        """Takes the nodes of `other`, unless a node outside both needs one of them and is needed by one."""
        own, users, sources = self.own | other.own, self.users | other.users, self.sources | other.sources
        if users & sources & ~own:
            return False
        self.own, self.users, self.sources = own, users, sources
        self.nodes += other.nodes
        return True


def _parts(graph: Graph, groups: list[set[Node]]) -> list[_Part]:
    """A part for each group, the last of the graph first."""
    bits = {node: 1 << place for place, node in enumerate(graph.nodes)}
    sources: dict[Node, int] = {}
    for node in graph.nodes:
        sources[node] = _union(bits[source] | sources[source] for source in node.all_input_nodes)
    groups.sort(key=max, reverse=True)
    return [
        _Part(
            number,
            sorted(group),
            own=_union(bits[node] for node in group),
            users=_union(bits[user] for node in group for user in node.users),
            sources=_union(sources[node] for node in group),
        )
        for number, group in enumerate(groups)
    ]


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _merged(parts: list[_Part]) -> list[_Part]:
    merged: list[_Part] = []
    for part in parts:
        if not any(other.merge(part) for other in merged):
            merged.append(part)
    return merged
