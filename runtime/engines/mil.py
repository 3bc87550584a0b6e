"""Core ML packages through the MIL reference executor, on any system.

A package holds a function per component. The functions of one package share its states, which are named
`GRAPH_name`. Core ML has no 64-bit integers, and its states are float16.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.bundle import Bundle
from bundle.cache import coreml_state_name
from bundle.errors import IntegrityError, UsageError, VoxportError
from bundle.manifest import ComponentEntry
from bundle.spec import TensorSpec
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays, check_states
from runtime.mil import PRECISIONS, Executor, MilError, Package, PackageError
from runtime.mil.program import Function

MIL_DTYPES = {"float32": "fp32", "int64": "int32"}


@dataclass(frozen=True)
class PackageState:
    """A state: a component that carries it, its name in the package, and its dtype in a snapshot."""

    entry: ComponentEntry
    name: str
    dtype: str


def package_states(entries: Iterable[ComponentEntry]) -> dict[str, PackageState]:
    """All states by their names in snapshots."""
    return {
        state.name: PackageState(entry, coreml_state_name(entry.graph, state.name), state.dtype)
        for entry in entries
        for state in entry.signature.states
    }


def int32_inputs(inputs: Arrays) -> Arrays:
    """`inputs` with int64 arrays converted to int32."""
    return {
        name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in inputs.items()
    }


class ReferenceEngine(Engine):
    """The MIL reference executor. A function is read on first use; all streams share its weights."""

    def __init__(self, bundle: Bundle, precision: str = "float16"):
        """Raises UsageError on a precision that the executor does not have."""
        super().__init__()
        if precision not in PRECISIONS:
            raise UsageError(
                f"compute_precision {precision!r}: expected one of {', '.join(PRECISIONS)}",
                field="compute_precision",
            )
        self.bundle, self._precision, self.identity = bundle, precision, f"executor, {precision}"
        self._packages: dict[str, Package] = {}
        self._executors: dict[tuple[str, str], Executor] = {}

    def executor(self, entry: ComponentEntry) -> Executor:
        """The executor of a component. Raises IntegrityError if the package is damaged."""
        key = (entry.file, entry.entry_point)
        if key not in self._executors:
            path = self.bundle.folder / entry.file
            try:
                if entry.file not in self._packages:
                    self._packages[entry.file] = Package(path)
                function = self._packages[entry.file].function(entry.entry_point)
                _check_interface(function, entry, path)
                self._executors[key] = Executor(function, self._precision)
            except MilError as error:
                raise IntegrityError(str(error)) from None
        return self._executors[key]

    def stream(self) -> "ReferenceStream":
        return ReferenceStream(self)


def _check_interface(function: Function, entry: ComponentEntry, path: Path) -> None:
    """Compares a function with the signature of its component.

    Raises IntegrityError that names the first difference.
    """
    signature = entry.signature
    states = {
        coreml_state_name(entry.graph, state.name): f"fp16[{', '.join(map(str, state.shape))}]"
        for state in signature.states
    }
    inputs = {spec.name: _mil_type(spec) for spec in signature.inputs}
    outputs = {spec.name: _mil_type(spec) for spec in signature.outputs}
    for kind, found, expected in (
        ("input", function.inputs, inputs),
        ("output", function.outputs, outputs),
        ("state", function.states, states),
    ):
        types = {name: str(found_type) for name, found_type in found.items()}
        for name in sorted(types.keys() | expected.keys()):
            if types.get(name) != expected.get(name):
                raise IntegrityError(
                    f"{path}: function {function.name}: {kind} {name}: found {types.get(name, 'none')}, "
                    f"the manifest has {expected.get(name, 'none')}; export the bundle again"
                )


def _mil_type(spec: TensorSpec) -> str:
    """The type as a MIL program prints it. A dimension with bounds prints as `?`."""
    sizes = ", ".join("?" if isinstance(size, str) else str(size) for size in spec.shape)
    return f"{MIL_DTYPES.get(spec.dtype)}[{sizes}]"


class ReferenceStream(Stream):
    """States by graph, under their names in the package.

    Those of a graph are zeros until the graph is called.
    """

    def __init__(self, engine: ReferenceEngine):
        self._entries = {entry.name: entry for entry in engine.bundle.components}
        super().__init__({name: entry.signature for name, entry in self._entries.items()}, engine.lock)
        self._engine = engine
        self._states: dict[str, Arrays] = {}

    def reset(self) -> None:
        self._states = {}

    def _graph_states(self, entry: ComponentEntry) -> Arrays:
        if entry.graph not in self._states:
            self._states[entry.graph] = self._engine.executor(entry).new_states()
        return self._states[entry.graph]

    def snapshot(self) -> Arrays:
        states = package_states(self._entries.values())
        with self.lock:
            return {
                name: self._graph_states(state.entry)[state.name].astype(state.dtype)
                for name, state in states.items()
            }

    def restore(self, states: Arrays) -> None:
        check_states(self.signatures.values(), states)
        with self.lock:
            for name, state in package_states(self._entries.values()).items():
                arrays = self._graph_states(state.entry)
                arrays[state.name] = states[name].astype(arrays[state.name].dtype)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._entries[component]
        try:
            outputs = self._engine.executor(entry).run(int32_inputs(inputs), self._graph_states(entry))
        except PackageError as error:
            raise IntegrityError(f"{self._engine.bundle.folder / entry.file}: {error}") from None
        except MilError as error:
            raise VoxportError(f"{entry.name}: {error}") from None
        return {spec.name: outputs[spec.name] for spec in entry.signature.outputs}
