"""float16 programs: a decomposed float32 program is traced again with its floats in half precision.

Inputs and outputs stay float32, and these values inside: norms, whose squares overflow and whose epsilons
vanish in float16, and everything from the last product on to logits and latents, which are rounded to codes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from voxport.export.targets.coreai.weights import stored_weight

FLOATS = (torch.float16, torch.float32)
aten = torch.ops.aten
# The operators of a decomposed norm before `rsqrt`.
NORM = {
    aten.add.Tensor,
    aten.add.Scalar,
    aten.mean.dim,
    aten.pow.Tensor_Scalar,
    aten.mul.Tensor,
    aten.mul.Scalar,
}
PRODUCTS = {aten.mm.default, aten.addmm.default}
# Operators that may follow the last product in float32.
ELEMENTARY = PRODUCTS | {
    aten.add.Tensor,
    aten.add.Scalar,
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.sub.Tensor,
    aten.sub.Scalar,
    aten.div.Tensor,
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.cat.default,
    aten.stack.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.split_with_sizes.default,
    aten.clone.default,
    aten.permute.default,
    aten.expand.default,
}


def narrowed(
    program: ExportedProgram, exact: Iterable[int], dynamic_shapes: Sequence[Any]
) -> ExportedProgram:
    """The program with floats in half precision. From the last product before the outputs `exact` on, they
    stay float32.
    """
    module = HalfProgram(program, exact)
    with torch.no_grad():
        return torch.export.export(
            module, module.inputs, dynamic_shapes=(tuple(dynamic_shapes),), strict=False
        )


class HalfProgram(nn.Module):
    """The program as a module. Its parameters, constants and states are buffers of half precision."""

    def __init__(self, program: ExportedProgram, exact: Iterable[int]):
        super().__init__()
        signature = program.graph_signature
        self.inputs: tuple[torch.Tensor, ...] = (program.example_inputs or ((), {}))[0]
        self._graph_module = program.graph_module
        self._inputs, self._outputs = signature.input_specs, signature.output_specs
        for spec in self._inputs:
            if spec.target is not None:
                tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
                self.register_buffer(_buffer(spec.target), _cast(tensor.detach(), torch.float16))
        results = next(iter(reversed(program.graph.nodes))).args[0]
        mutated = sum(spec.kind.name == "BUFFER_MUTATION" for spec in self._outputs)
        self._float32 = norms(program.graph) | last_products(results[mutated + index] for index in exact)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = iter(inputs)
        arguments = [
            next(given) if spec.target is None else self.get_buffer(_buffer(spec.target))
            for spec in self._inputs
        ]
        outputs = []
        for spec, result in zip(
            self._outputs, _Half(self._graph_module, self._float32).run(*arguments), strict=True
        ):
            if spec.kind.name == "BUFFER_MUTATION":
                self.get_buffer(_buffer(spec.target)).copy_(result)
            else:
                outputs.append(_cast(result, torch.float32))
        return tuple(outputs)


class _Half(fx.Interpreter):
    """Runs each operator in float16, or in float32 if it is one of `float32`."""

    def __init__(self, module: fx.GraphModule, float32: set[fx.Node]):
        super().__init__(module)
        self._float32 = float32

    def run_node(self, node: fx.Node) -> Any:
        if node.op != "call_function":
            return super().run_node(node)
        if "_assert" in str(node.target):  # bounds of dynamic sizes, which are checked before each call
            return None
        dtype = torch.float32 if node in self._float32 else torch.float16
        if node.target is torch.ops.voxport.stored_weight.default:
            return stored_weight(*node.args[:3], dtype)
        arguments, options = fx.node.map_aggregate(
            self.fetch_args_kwargs_from_env(node), lambda value: _cast(value, dtype)
        )
        options = {name: dtype if value is torch.float32 else value for name, value in options.items()}
        assert callable(node.target)
        return fx.node.map_aggregate(node.target(*arguments, **options), lambda value: _cast(value, dtype))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A float tensor in `dtype`; anything else as it is."""
    is_float = isinstance(value, torch.Tensor) and value.dtype in FLOATS and value.dtype != dtype
    return value.to(dtype) if is_float else value


def _buffer(target: str) -> str:
    return target.replace(".", "__")


def norms(graph: fx.Graph) -> set[fx.Node]:
    """The nodes of every norm: from its square to the product with the reciprocal root."""
    found = set()
    for root in graph.nodes:
        if root.target is not aten.rsqrt.default:
            continue
        found.add(root)
        found.update(user for user in root.users if user.target is aten.mul.Tensor)
        node = root.args[0]
        while isinstance(node, fx.Node) and node.target in NORM:
            found.add(node)
            if node.target is aten.pow.Tensor_Scalar:
                break
            node = next(iter(node.all_input_nodes), None)
    return found


def last_products(results: Iterable[fx.Node]) -> set[fx.Node]:
    """The last products before `results`, and what follows them."""
    found: set[fx.Node] = set()
    open_ = list(results)
    while open_:
        node = open_.pop()
        is_elementary = node.target in ELEMENTARY or getattr(node.target, "__name__", "") == "getitem"
        if node in found or not is_elementary:
            continue
        found.add(node)
        if node.target not in PRODUCTS:
            open_ += node.all_input_nodes
    return found
