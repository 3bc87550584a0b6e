"""Core ML bundles: through Core ML itself on macOS, through the MIL reference executor elsewhere.

A package holds a function per component; functions of one package share its states, which are called `GRAPH_name`.
Core ML has no 64-bit integers, and its states are half precision.
"""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bundle.bundle import Bundle
from bundle.cache import coreml_state_name
from bundle.errors import IntegrityError, UsageError, VoxportError, first_line
from bundle.manifest import ComponentEntry
from bundle.spec import TensorSpec
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays, check_states
from runtime.mil import PRECISIONS, Executor, MilError, Package, PackageError
from runtime.mil.program import Function

log = logging.getLogger(__name__)
KINDS = {"float32": "fp32", "int64": "int32"}  # Core ML has no 64-bit integers
UNIT_NAMES = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE"}


def open_coreml(bundle: Bundle, precision: str | None = None, compute_units: str | None = None) -> Engine:
    """`precision` asks for the reference executor, wherever this runs; `compute_units` for Core ML. Raises UsageError."""
    native = sys.platform == "darwin" and precision is None
    if compute_units not in (None, "all") and not native:
        why = (
            "there is no Core ML on this system"
            if precision is None
            else "--compute-precision asks for the reference executor"
        )
        raise UsageError(f"--compute-units {compute_units}: Core ML's, and {why}; leave it out")
    if not native and precision is None:
        log.warning(
            "%s: a Core ML bundle and no Core ML here: the reference executor runs it, slower than a device would",
            bundle.folder,
        )
    return (
        CoreMLEngine(bundle, compute_units or "all")
        if native
        else ReferenceEngine(bundle, precision or "float16")
    )


def _integers(inputs: Arrays) -> Arrays:
    return {
        name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in inputs.items()
    }


class ReferenceEngine(Engine):
    """The MIL reference executor. Functions are read on first use, and weights held once for all streams."""

    def __init__(self, bundle: Bundle, precision: str = "float16"):
        super().__init__()
        if precision not in PRECISIONS:
            raise UsageError(f"--compute-precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
        self.bundle, self._precision, self.identity = bundle, precision, f"executor, {precision}"
        self._packages: dict[str, Package] = {}
        self._executors: dict[tuple[str, str], Executor] = {}

    def executor(self, entry: ComponentEntry) -> Executor:
        """Raises IntegrityError where the package is damaged."""
        key = (entry.file, entry.entry_point)
        if key not in self._executors:
            try:
                if entry.file not in self._packages:
                    self._packages[entry.file] = Package(self.bundle.folder / entry.file)
                function = self._packages[entry.file].function(entry.entry_point)
                _check_interface(function, entry, self.bundle.folder / entry.file)
                self._executors[key] = Executor(function, self._precision)
            except MilError as error:
                raise IntegrityError(str(error)) from None
        return self._executors[key]

    def stream(self) -> ReferenceStream:
        return ReferenceStream(self)


def _check_interface(function: Function, entry: ComponentEntry, path: Path) -> None:
    """A function takes and gives what the manifest says of its component. Raises IntegrityError that names what differs."""
    states = {
        coreml_state_name(entry.graph, state.name): f"fp16[{', '.join(map(str, state.shape))}]"
        for state in entry.signature.states
    }
    inputs, outputs = (
        {spec.name: _declared(spec) for spec in specs}
        for specs in (entry.signature.inputs, entry.signature.outputs)
    )
    for what, found, expected in (
        ("input", function.inputs, inputs),
        ("output", function.outputs, outputs),
        ("state", function.states, states),
    ):
        kinds = {name: str(kind) for name, kind in found.items()}
        for name in sorted(kinds.keys() | expected.keys()):
            if kinds.get(name) != expected.get(name):
                said = (
                    f"{kinds.get(name, 'missing')}, the manifest says {expected.get(name, 'there is none')}"
                )
                raise IntegrityError(f"{path}: function {function.name}: {what} {name}: {said}")


def _declared(spec: TensorSpec) -> str:
    """As the program writes it: a size with bounds is not known."""
    return f"{KINDS.get(spec.dtype)}[{', '.join('?' if isinstance(size, str) else str(size) for size in spec.shape)}]"


class ReferenceStream(Stream):
    def __init__(self, engine: ReferenceEngine):
        self._entries = {entry.name: entry for entry in engine.bundle.components}
        super().__init__({name: entry.signature for name, entry in self._entries.items()}, engine.lock)
        self._engine = engine
        self.reset()

    def reset(self) -> None:
        self._states: dict[
            str, Arrays
        ] = {}  # by graph, then by the package's names; zeros until the graph is called

    def _states_of(self, entry: ComponentEntry) -> Arrays:
        if entry.graph not in self._states:
            self._states[entry.graph] = self._engine.executor(entry).new_states()
        return self._states[entry.graph]

    def snapshot(self) -> Arrays:
        with self.lock:
            return {
                name: self._states_of(entry)[inside].astype(dtype)
                for name, (entry, inside, dtype) in _state_names(self._entries).items()
            }

    def restore(self, states: Arrays) -> None:
        check_states(self.signatures.values(), states)
        with self.lock:
            for name, (entry, inside, _) in _state_names(self._entries).items():
                held = self._states_of(entry)
                held[inside] = states[name].astype(held[inside].dtype)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._entries[component]
        try:
            outputs = self._engine.executor(entry).run(_integers(inputs), self._states_of(entry))
        except PackageError as error:
            raise IntegrityError(f"{self._engine.bundle.folder / entry.file}: {error}") from None
        except MilError as error:
            raise VoxportError(f"{entry.name}: {error}") from None
        return {spec.name: outputs[spec.name] for spec in entry.signature.outputs}


def _state_names(components: dict[str, ComponentEntry]) -> dict[str, tuple[ComponentEntry, str, str]]:
    """Every state: an entry that carries it, its name in the package, its type in a snapshot."""
    return {
        state.name: (entry, coreml_state_name(entry.graph, state.name), state.dtype)
        for entry in components.values()
        for state in entry.signature.states
    }


@contextmanager
def _told(component: str) -> Iterator[None]:
    """Core ML's own errors have no common base below Exception."""
    try:
        yield
    except VoxportError:
        raise
    except Exception as error:
        raise VoxportError(f"{component}: Core ML failed: {first_line(error)}") from None


class CoreMLEngine(Engine):
    """Core ML on macOS 15 or newer. Models load and are compiled for this machine on first use."""

    def __init__(self, bundle: Bundle, compute_units: str):
        super().__init__()
        import coremltools

        self.bundle, self.identity = bundle, f"Core ML {platform.mac_ver()[0]}, {compute_units}"
        self._coremltools = coremltools
        self._units = coremltools.ComputeUnit[UNIT_NAMES[compute_units]]
        self._models: dict[tuple[str, str], Any] = {}

    def model(self, entry: ComponentEntry) -> Any:
        key = (entry.file, entry.entry_point)
        if key not in self._models:
            path = str(self.bundle.folder / entry.file)
            try:
                self._models[key] = self._coremltools.models.MLModel(
                    path, compute_units=self._units, function_name=entry.entry_point
                )
            except Exception as error:  # Core ML's own errors have no common base below Exception
                raise VoxportError(f"{path}: Core ML cannot open it: {first_line(error)}") from None
        return self._models[key]

    def stream(self) -> CoreMLStream:
        return CoreMLStream(self)


class CoreMLStream(Stream):
    """One `MLState` per graph, which all functions of its package take."""

    def __init__(self, engine: CoreMLEngine):
        self._entries = {entry.name: entry for entry in engine.bundle.components}
        super().__init__({name: entry.signature for name, entry in self._entries.items()}, engine.lock)
        self._engine = engine
        self.reset()

    def reset(self) -> None:
        self._states: dict[str, Any] = {}

    def _state_of(self, entry: ComponentEntry) -> Any:
        if entry.graph not in self._states:
            with _told(entry.name):
                self._states[entry.graph] = self._engine.model(entry).make_state()
        return self._states[entry.graph]

    def snapshot(self) -> Arrays:
        states = {}
        for name, (entry, inside, dtype) in _state_names(self._entries).items():
            with _told(entry.name):
                states[name] = np.array(self._state_of(entry).read_state(inside), dtype)
        return states

    def restore(self, states: Arrays) -> None:
        check_states(self.signatures.values(), states)
        for name, (entry, inside, _) in _state_names(self._entries).items():
            with _told(entry.name):  # single precision: coremltools hands no half array over to the framework
                self._state_of(entry).write_state(inside, states[name])

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._entries[component]
        arguments = [_integers(inputs)] + ([self._state_of(entry)] if entry.signature.states else [])
        with _told(entry.name):
            outputs = self._engine.model(entry).predict(*arguments)
        return {spec.name: outputs[spec.name] for spec in entry.signature.outputs}
