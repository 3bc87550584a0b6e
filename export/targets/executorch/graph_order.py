"""Order of the nodes of a graph out of which ExecuTorch takes parts for a backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from executorch.exir import lowered_backend_module
from torch.fx import GraphModule, Node
from torch.fx.passes.tools_common import legalize_graph


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
    come before it. Where an input of the part comes behind it, sorts the whole graph, as ExecuTorch does.
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
