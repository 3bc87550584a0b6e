"""Values of nodes, tensors without data, that passes of ExecuTorch would compute anew."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import _ExportPassBase
from torch._subclasses import FakeTensor
from torch.fx import Interpreter, Node


@dataclass(frozen=True)
class _Call:
    operator: Any
    inputs: Any
    result: Any


@contextmanager
def values_kept() -> Iterator[None]:
    """Lets passes keep the value of a node that an earlier pass computed from equal inputs.

    Eight passes run every operator of a program on tensors without data, to find shapes. This was a quarter
    of the time of lowering.
    """
    interpreter: Any = _ExportPassBase.ExportInterpreter  # Any: a method of it is replaced
    run_node, calls = interpreter.run_node, dict[tuple[bool, int], _Call]()

    def run(self: Any, node: Node) -> Any:
        computing = self.callback.interpreter
        self.callback.interpreter = _Keeping(computing, node, calls)
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
    """Calls operators for a pass, which has come to `node`.

    `calls` are those of all passes, by their results. The arguments of `node` cannot be compared in their
    place, because a pass may have changed them and left the value.
    """

    def __init__(self, interpreter: Interpreter, node: Node, calls: dict[tuple[bool, int], _Call]):
        self.output = interpreter.output
        self._interpreter, self._value, self._calls = interpreter, node.meta.get("val"), calls

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        operator, inputs = _operator(target), (args, kwargs)
        call = self._calls.get(_key(self._value))
        if call and call.operator is operator and _equal(call.inputs, inputs):
            return call.result
        result = self._interpreter.call_function(target, args, kwargs)
        self._calls[_key(result)] = _Call(operator, inputs, result)
        return result


def _key(value: Any) -> tuple[bool, int]:
    """Identity of a value. Passes copy lists of values, and keep the values."""
    is_list = isinstance(value, (list, tuple))
    return is_list, id(value[0] if is_list and value else value)


def _operator(target: Any) -> Any:
    """An operator of ExecuTorch computes the shapes of the operator of torch that it was made from."""
    return target._op if isinstance(target, EdgeOpOverload) else target


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
