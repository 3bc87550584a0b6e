"""Methods `GRAPH.read` and `GRAPH.write` of a program, by which a runtime saves and restores states."""

import torch
from torch import nn

from bundle.spec import READ_METHOD, WRITE_METHOD
from export.targets.executorch.target import state_rows_per_call
from export.targets.tracing import TRACE_ROWS, Stateful
from model.component import Component


class StateIO(Stateful):
    """The states of a graph, without its weights."""

    def __init__(self, component: Component):
        super().__init__(component, nn.Module())
        self.are_caches = [state.cache for state in component.signature.states]


class ReadStates(StateIO):
    """`GRAPH.read`: returns all states.

    For caches, it returns only the rows whose numbers are given in its input, int64 [N].
    """

    def forward(self, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = zip(self.states(), self.are_caches, strict=True)
        return tuple(
            buffer.index_select(1, rows[0]) if is_cache else buffer.clone() for buffer, is_cache in pairs
        )


class WriteStates(StateIO):
    """`GRAPH.write`: replaces all states; of caches, the rows whose numbers are the first input, int64 [N].

    States are zero when a program is loaded, whatever values it was exported with.
    """

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, values = (given[:1], given[1:]) if any(self.are_caches) else ((), given)
        for buffer, is_cache, value in zip(self.states(), self.are_caches, values, strict=True):
            if is_cache:
                torch.ops.llama.update_cache_with_indices(value, buffer, 0, rows[0][None])
            else:
                buffer.copy_(value)
        return ()


def state_methods(component: Component) -> dict[str, torch.export.ExportedProgram]:
    """Both methods by name; none for a component without states.

    They move a limited number of rows per call. ExecuTorch allocates memory for the largest inputs and
    outputs of a method when it is loaded, so methods for whole caches would take the memory of the caches
    again.
    """
    states = component.signature.states
    if not states:
        return {}
    most = state_rows_per_call(component)
    count = torch.export.Dim("rows", min=1, max=most) if most else None
    rows = (torch.arange(TRACE_ROWS),) if most else ()
    values = tuple(torch.zeros(state.shape)[:, : TRACE_ROWS if state.cache else None] for state in states)
    dynamic = tuple({1: count} if state.cache else None for state in states)
    return {
        f"{component.graph}{READ_METHOD}": torch.export.export(
            ReadStates(component), rows, dynamic_shapes=(({0: count},),) if most else None, strict=False
        ),
        f"{component.graph}{WRITE_METHOD}": torch.export.export(
            WriteStates(component),
            (*rows, *values),
            dynamic_shapes=(({0: count}, *dynamic),) if most else None,
            strict=False,
        ),
    }
