"""What torch.fx keeps beside the nodes of a traced graph: Python code, and the lines that made each node."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Any

from torch.fx import GraphModule, config
from torch.fx.graph import _PyTreeCodeGen

_compile = GraphModule.recompile


@contextmanager
def lazily_compiled_graphs() -> Iterator[None]:
    """Lets graphs have code only once they are called. Passes of exporters walk through graphs instead.

    Otherwise each change of a graph writes and compiles the code of the whole graph. ExecuTorch changes a
    program for each part that it delegates, so its time would grow with the square of the number of parts.
    """
    graph_module: Any = GraphModule  # Any: a method of it is replaced
    graph_module.recompile = _compile_later
    try:
        yield
    finally:
        graph_module.recompile = _compile


@contextmanager
def without_stack_traces() -> Iterator[None]:
    """Traces without a stack trace for each node. No bundle contains one, and errors of torch name the
    operators without them.
    """
    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def _compile_later(module: Any) -> None:  # Any: sets private attributes, as the method that it replaces
    codegen = module.graph._codegen
    if isinstance(codegen, _PyTreeCodeGen):
        module._in_spec, module._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
    module._code = "not compiled yet"

    def forward(self: GraphModule, *arguments: Any, **named: Any) -> Any:
        _compile(self)
        return self.forward(*arguments, **named)

    if isinstance(codegen, _PyTreeCodeGen):  # torch.export reads the names of its arguments
        names = dict.fromkeys(("self", *codegen.pytree_info.orig_args))
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    type(module).forward = forward  # each module has a class of its own
