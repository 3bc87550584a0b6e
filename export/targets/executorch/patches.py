"""Patches of torch and ExecuTorch, for time and memory that exports of real models need.

`tests/export/targets/test_patches.py` says when they can go. `to_backend` copies and sorts a program once for
each part that it delegates. The published models of Qwen3-TTS have 500 parts. One run each of
`export --target executorch --quant w8 --no-verify` on random weights of 0.6B, ExecuTorch 1.4.1, 2 cores of an
AMD EPYC; the last two rows on a busy machine, so without their times:

| without | processor time | peak memory |
|---|---|---|
| nothing | 279 s | 3.8 GB |
| `late_nodes_moved` | 516 s | 4.0 GB |
| `shared_weights` | | 5.3 GB |
| `FastPartitioner` | | 6.6 GB |
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import lowered_backend_module
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.tools_common import legalize_graph


@contextmanager
def shared_weights() -> Iterator[None]:
    """Lets deep copies of programs share their weights, which ExecuTorch never changes.

    It copies each program before it passes parts to a backend. The weights would take 4 GB more for the
    published backbone of Voxtral-TTS: by its size, not measured, 14 GB in place of 10 with `w8`.
    """
    storage: Any = torch.UntypedStorage  # Any: a method of it is replaced
    copy = storage.__deepcopy__
    storage.__deepcopy__ = lambda weights, memo: weights
    try:
        yield
    finally:
        storage.__deepcopy__ = copy


@contextmanager
def late_nodes_moved() -> Iterator[None]:
    """Lets ExecuTorch move only the nodes that a new part puts out of order.

    `create_submodule_from_nodes` sorts the graph after each part with `legalize_graph`, which copies every
    node, so the time of lowering grows with the square of the number of parts. `legalize_graph` once, after
    the last part, gives the same programs, except for the order of operations on sizes.
    """
    module: Any = lowered_backend_module  # Any: a function of it is replaced
    sort = module.legalize_graph
    module.legalize_graph = move_late_nodes
    try:
        yield
    finally:
        module.legalize_graph = sort


def move_late_nodes(module: GraphModule) -> GraphModule:
    """Moves the nodes that need the newest `call_module` node, but precede it, behind it.

    ExecuTorch inserts that node behind the last result of the part, so nodes that need another result may
    come before it. If an input of the part comes behind it, sorts the whole graph, as ExecuTorch does.
    ExecuTorch checks the order after the last part.
    """
    call = module.graph.find_nodes(op="call_module", sort=False)[-1]
    if not all(source < call for source in call.all_input_nodes):
        return legalize_graph(module)
    late: set[Node] = set()
    unread = [call, *call.users]
    while unread:
        found = {user for user in unread.pop().users if user < call} - late
        late |= found
        unread.extend(found)
    last = call
    while last.next in call.users:  # the items of its result
        last = last.next
    for node in sorted(late):
        last.append(node)
        last = node
    return module


class FastPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # executorch has no types
    """Partitioner that makes the partitions of `XnnpackPartitioner` in less memory."""

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        """Merges parts that can be one part.

        `GroupBasedPartitioner` of ExecuTorch makes the same choice, but makes the set of all nodes that
        follow a part anew for each pair of parts.
        """
        parts = _parts(ep.graph, [set(group) for group in self.get_matched_nodes_from_configs(ep)])
        return [Partition(id=part.number, nodes=part.nodes) for part in _merged(parts)]


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
