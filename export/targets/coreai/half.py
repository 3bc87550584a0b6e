"""float16 programs: the floats of a decomposed float32 program get half precision.

Inputs and outputs stay float32, and these values inside: norms, whose squares overflow and whose epsilons
vanish in float16, and everything from the last product on to logits and latents, which are rounded to codes.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

FLOATS = (torch.float16, torch.float32)
aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.convolution}


def narrow(program: ExportedProgram, exact: Iterable[int]) -> None:
    """Changes a decomposed float32 program: its floats, constants and states get half precision. From the
    last product before the outputs `exact` on, floats stay float32, and constants that nothing else takes:
    the compiler widens constants itself, and gets subnormal numbers wrong.

    Tracing the program again in half precision would take as long as the first time.
    """
    signature = program.graph_signature
    mutated = len(signature.buffers_to_mutate)
    results = program.graph.output_node().args[0]
    float32 = norms(program.graph) | last_products(results[mutated + index] for index in exact)
    for node in reversed(program.graph.nodes):
        if node.op == "placeholder" or node.target is aten.permute.default:
            float32.update([node] if node.users and float32.issuperset(node.users) else [])
    targets = {spec.arg.name: spec.target for spec in signature.input_specs}  # None: an input
    kept = {targets[node.name] for node in float32 if node.op == "placeholder"}
    kept = (kept - set(signature.buffers_to_mutate.values())) | {None}
    for tensors in (program.state_dict, program.constants):
        tensors.update({name: _cast(tensors[name], torch.float16) for name in tensors.keys() - kept})
    with results[0].meta["val"].fake_mode:
        for node in list(program.graph.nodes):
            if node.op == "placeholder" and targets[node.name] not in kept:
                node.meta["val"] = _cast(node.meta["val"], torch.float16)
            elif node.op == "call_function":
                _compute_in(torch.float32 if node in float32 else torch.float16, node)
        dtypes = [torch.float16] * mutated + [torch.float32] * (len(results) - mutated)
        output = program.graph.output_node()
        with program.graph.inserting_before(output):
            results = tuple(map(_cast_node, output.args[0], dtypes))
    for spec, result in zip(signature.output_specs, results, strict=True):
        spec.arg = TensorArgument(result.name)
    output.args = (results,)


def _compute_in(dtype: torch.dtype, node: fx.Node) -> None:
    """Casts the arguments of an operator and, if it gives floats of another type, its result."""
    if "_assert" in str(node.target):  # bounds of dynamic sizes, which are checked before each call
        node.graph.erase_node(node)
        return
    with node.graph.inserting_before(node):
        for argument in node.all_input_nodes:
            node.replace_input_with(argument, _cast_node(argument, dtype))
    replaced = lambda value: dtype if value is torch.float32 else value
    node.args, node.kwargs = tuple(map(replaced, node.args)), fx.node.map_aggregate(node.kwargs, replaced)
    # the type of its floats, which are not computed again: some operators, such as padding, then fix a size
    floats = _floats([argument.meta["val"] for argument in node.all_input_nodes])
    made = floats[0].dtype if floats else torch.float32
    if dtype in (*node.args, *node.kwargs.values()):
        made = dtype
    node.meta["val"] = fx.node.map_aggregate(node.meta["val"], lambda value: _cast(value, made))
    with node.graph.inserting_after(node):
        result = _cast_node(node, dtype)
    if result is not node:
        node.replace_all_uses_with(result, lambda user: user is not result)


def _cast_node(node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """A node for the floats of `node` in `dtype`, which is `node` itself if nothing changes."""
    value = node.meta["val"]
    if (changed := _cast(value, dtype)) is value:
        return node
    result = node.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    result.meta["val"] = changed
    return result


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A float tensor in `dtype`; anything else as it is."""
    is_float = isinstance(value, torch.Tensor) and value.dtype in FLOATS and value.dtype != dtype
    return value.detach().to(dtype) if is_float else value


def norms(graph: fx.Graph) -> set[fx.Node]:
    """The nodes of every norm. If it is decomposed: from its square to the product with the root."""
    found = set[fx.Node]()
    for root in graph.nodes:
        if _operator(root) is aten.native_layer_norm:
            found.update((root, *root.users))
        elif _operator(root) is aten.rsqrt:
            found.update(user for user in root.users if _operator(user) is aten.mul)
            node = root
            while _operator(node) in (aten.rsqrt, aten.add, aten.mean):
                found.add(node)
                node = node.all_input_nodes[0]
            found.add(node)
    return found


def last_products(results: Iterable[fx.Node]) -> set[fx.Node]:
    """The last products before `results`, and all floats that are computed from them."""
    found, open_ = set[fx.Node](), list(results)
    while open_:
        node = open_.pop()
        if node in found or node.op != "call_function" or not _floats(node.meta["val"]):
            continue
        found.add(node)
        if _operator(node) not in PRODUCTS:
            open_ += node.all_input_nodes
    return found


def _operator(node: fx.Node) -> Any:
    """What a node computes, in any overload."""
    return getattr(node.target, "overloadpacket", node.target)


def _floats(values: Any) -> list[torch.Tensor]:
    found: list[Any] = []
    fx.node.map_aggregate(values, found.append)
    return [value for value in found if isinstance(value, torch.Tensor) and value.dtype in FLOATS]
