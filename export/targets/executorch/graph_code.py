"""Python code of traced graphs, which torch.fx writes and compiles anew after every change of a graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen

_compile = GraphModule.recompile


@contextmanager
def lazily_compiled_graphs() -> Iterator[None]:
    """Lets graphs have code only once they are called. Passes of exporters walk through graphs instead.

    ExecuTorch changes a program for each part that it delegates. If it compiles the whole program each time,
    the time of lowering grows with the square of the number of parts.
    """
    graph_module: Any = GraphModule  # Any: a method of it is replaced
    graph_module.recompile = _compile_later
    try:
        yield
    finally:
        graph_module.recompile = _compile


def _compile_later(module: Any) -> None:  # Any: sets private attributes, as the method that it replaces
    codegen = module.graph._codegen
    if isinstance(codegen, _PyTreeCodeGen):
        module._in_spec, module._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
    module._code = "not compiled yet"
    type(module).forward = _compile_and_call  # each module has a class of its own


def _compile_and_call(module: GraphModule, *arguments: Any, **named: Any) -> Any:
    _compile(module)
    return module.forward(*arguments, **named)
