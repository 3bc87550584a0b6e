"""Values of nodes, tensors without data, that passes of ExecuTorch would compute anew."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import _ExportPassBase
from torch._subclasses import FakeTensor
from torch.fx import Interpreter, Node
from torch.fx.node import map_arg


@contextmanager
def values_kept() -> Iterator[None]:
    """Lets a pass keep the value of a node whose operator and inputs it leaves as they are.

    Eight passes run every operator of a program on tensors without data, to find shapes. This was a quarter
    of the time of lowering.
    """
    interpreter: Any = _ExportPassBase.ExportInterpreter  # Any: a method of it is replaced
    run_node = interpreter.run_node

    def run(self: Any, node: Node) -> Any:
        self.callback.interpreter, computing = (
            _Keeping(self.callback.interpreter, node),
            self.callback.interpreter,
        )
        try:
            return run_node(self, node)
        finally:
            self.callback.interpreter = computing

    interpreter.run_node = run
    try:
        yield
    finally:
        interpreter.run_node = run_node


class _Keeping:
    """Calls operators for a pass, which has come to `node`."""

    def __init__(self, interpreter: Interpreter, node: Node):
        self.output = interpreter.output
        self._interpreter, self._node = interpreter, node

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        node = self._node
        is_same = _operator(target) is _operator(node.target) and _equal((args, kwargs), _inputs(node))
        if is_same and "val" in node.meta:
            return node.meta["val"]
        return self._interpreter.call_function(target, args, kwargs)


def _operator(target: Any) -> Any:
    """An operator of ExecuTorch computes the shapes of the operator of torch that it was made from."""
    return target._op if isinstance(target, EdgeOpOverload) else target


def _inputs(node: Node) -> Any:
    return map_arg((node.args, node.kwargs), _value)


def _value(node: Node) -> Any:
    if node.op == "get_attr":
        return attrgetter(str(node.target))(node.graph.owning_module)
    return node.meta.get("val")


def _equal(first: Any, second: Any) -> bool:
    """Lists and tuples are alike."""
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    return _equal_leaves(first, second)


def _equal_leaves(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, FakeTensor):
        return first.constant is second.constant and _form(first) == _form(second)
    if isinstance(first, torch.Tensor):
        return False
    return bool(_number(first) == _number(second))


def _form(tensor: FakeTensor) -> tuple[Any, ...]:
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return tensor.dtype, tensor.device, tensor.requires_grad, *map(_number, sizes)


def _number(value: Any) -> Any:
    """A symbolic number as its expression: `==` of two numbers would add a condition to the program."""
    return value.node.expr if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
