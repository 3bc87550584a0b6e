"""Streams of engines that keep the states of a graph in one object (Core ML, Core AI)."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.errors import VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.bundle.spec import StateSpec, graph_state_name
from voxport.runtime.engines.base import Arrays, Engine, Stream, unique_states
from voxport.runtime.engines.states import copy_states, write_states


@contextmanager
def engine_errors(program: str, what: str | Path) -> Iterator[None]:
    """Turns errors of `program` into VoxportError. Their types have no common base below Exception."""
    try:
        yield
    except VoxportError:
        raise
    except Exception as error:
        raise VoxportError(f"{what}: {program} failed: {first_line(error)}") from None


def state_shapes(entry: ComponentEntry) -> dict[str, tuple[int, ...]]:
    """By their names in the package."""
    return {graph_state_name(entry.graph, state.name): state.shape for state in entry.signature.states}


class PackageEngine(Engine):
    """An engine whose functions share the states of their graph.

    `states` are what `new_states` returned for a component of the same graph; None for a component without
    states. `name` is a state's name in the package. Integers are int32.
    """

    def __init__(self, bundle: Bundle, identity: str):
        super().__init__()
        self.bundle, self.identity = bundle, identity

    def stream(self) -> "PackageStream":
        return PackageStream(self)

    @abstractmethod
    def new_states(self, entry: ComponentEntry) -> Any: ...

    @abstractmethod
    def read_state(self, entry: ComponentEntry, states: Any, name: str) -> np.ndarray: ...

    @abstractmethod
    def write_state(self, entry: ComponentEntry, states: Any, name: str, array: np.ndarray) -> None: ...

    @abstractmethod
    def call(self, entry: ComponentEntry, inputs: Arrays, states: Any) -> Arrays: ...


class PackageStream(Stream):
    """States by graph, in an object of the engine. Those of a graph are zeros until the graph is called."""

    def __init__(self, engine: "PackageEngine"):
        super().__init__({entry.name: entry.signature for entry in engine.bundle.components}, engine.lock)
        self._engine = engine
        self._states: dict[str, Any] = {}  # each engine has its own objects

    def reset(self) -> None:
        self._states = {}

    def _graph_states(self, entry: ComponentEntry) -> Any:
        if entry.graph not in self._states:
            self._states[entry.graph] = self._engine.new_states(entry)
        return self._states[entry.graph]

    def _place(self, state: str) -> tuple[ComponentEntry, Any, str]:
        """A component that has the state, the states of its graph, and the name in the package."""
        entries = self._engine.bundle.components
        entry = next(each for each in entries if state in {found.name for found in each.signature.states})
        return entry, self._graph_states(entry), graph_state_name(entry.graph, state)

    def _read(self, state: StateSpec) -> np.ndarray:
        return self._engine.read_state(*self._place(state.name)).astype(state.dtype, copy=False)

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return copy_states({state.name: self._read(state) for state in states}, states, positions)

    def _load(self, states: Arrays) -> None:
        specs = unique_states(self.signatures.values())
        whole = {name: self._read(specs[name]).copy() for name in states}
        write_states(whole, states)
        for name, array in whole.items():
            self._engine.write_state(*self._place(name), array)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._engine.bundle.component(component)
        arrays = {
            name: array.astype(np.int32) if array.dtype == np.int64 else array
            for name, array in inputs.items()
        }
        states = self._graph_states(entry) if entry.signature.states else None
        outputs = self._engine.call(entry, arrays, states)
        # packages have no 64-bit integers
        integers = {spec.name for spec in entry.signature.outputs if spec.dtype == "int64"}
        return {
            name: array.astype(np.int64) if name in integers and array.dtype == np.int32 else array
            for name, array in outputs.items()
        }
