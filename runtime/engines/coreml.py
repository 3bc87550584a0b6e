"""Core ML bundles: through Core ML on macOS, through the MIL reference executor elsewhere."""

import logging
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import UsageError, VoxportError, first_line
from bundle.manifest import ComponentEntry
from runtime.engines.base import Engine, EngineOptions, Stream
from runtime.engines.mil import ReferenceEngine, int32_inputs, package_states
from runtime.engines.states import Arrays, check_states

log = logging.getLogger(__name__)
UNIT_NAMES = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE"}


def open_coreml(bundle: Bundle, options: EngineOptions) -> Engine:
    """Core ML, or the reference executor on other systems and where `compute_precision` is given.

    Raises UsageError if `compute_units` are given to the reference executor.
    """
    precision, units = options.compute_precision, options.compute_units
    if sys.platform == "darwin" and precision is None:
        return CoreMLEngine(bundle, units or "all")
    if units not in (None, "all"):
        reason = (
            "this system has no Core ML"
            if precision is None
            else "compute_precision selects the reference executor"
        )
        raise UsageError(
            f"compute_units {units}: {reason}; leave it out or run on macOS without compute_precision",
            field="compute_units",
        )
    if precision is None:
        log.warning(
            "%s: this system has no Core ML; the reference executor runs the bundle, slower than a device",
            bundle.folder,
        )
    return ReferenceEngine(bundle, precision or "float16")


@contextmanager
def _core_ml_errors(what: str) -> Iterator[None]:
    """Turns errors of Core ML into VoxportError. Their types have no common base below Exception."""
    try:
        yield
    except VoxportError:
        raise
    except Exception as error:
        raise VoxportError(f"{what}: Core ML failed: {first_line(error)}") from None


class CoreMLEngine(Engine):
    """Core ML on macOS 15 or newer. Models load and are compiled for this machine on first use."""

    def __init__(self, bundle: Bundle, compute_units: str):
        super().__init__()
        import coremltools

        self.bundle, self.identity = bundle, f"Core ML {platform.mac_ver()[0]}, {compute_units}"
        self._coremltools = coremltools
        self._units = coremltools.ComputeUnit[UNIT_NAMES[compute_units]]
        self._models: dict[tuple[str, str], Any] = {}  # MLModel; coremltools has no types

    def model(self, entry: ComponentEntry) -> Any:
        """The `MLModel` of a component. Raises VoxportError if Core ML cannot open it."""
        key = (entry.file, entry.entry_point)
        if key not in self._models:
            path = str(self.bundle.folder / entry.file)
            with _core_ml_errors(path):
                self._models[key] = self._coremltools.models.MLModel(
                    path, compute_units=self._units, function_name=entry.entry_point
                )
        return self._models[key]

    def stream(self) -> "CoreMLStream":
        return CoreMLStream(self)


class CoreMLStream(Stream):
    """One `MLState` per graph, which all functions of its package use."""

    def __init__(self, engine: CoreMLEngine):
        self._entries = {entry.name: entry for entry in engine.bundle.components}
        super().__init__({name: entry.signature for name, entry in self._entries.items()}, engine.lock)
        self._engine = engine
        self._states: dict[str, Any] = {}  # MLState; coremltools has no types

    def reset(self) -> None:
        self._states = {}

    def _graph_state(self, entry: ComponentEntry) -> Any:
        if entry.graph not in self._states:
            with _core_ml_errors(entry.name):
                self._states[entry.graph] = self._engine.model(entry).make_state()
        return self._states[entry.graph]

    def snapshot(self) -> Arrays:
        states = {}
        for name, state in package_states(self._entries.values()).items():
            with _core_ml_errors(state.entry.name):
                states[name] = np.array(self._graph_state(state.entry).read_state(state.name), state.dtype)
        return states

    def restore(self, states: Arrays) -> None:
        check_states(self.signatures.values(), states)
        for name, state in package_states(self._entries.values()).items():
            with _core_ml_errors(state.entry.name):  # float32: coremltools passes no float16 array to Core ML
                self._graph_state(state.entry).write_state(state.name, states[name])

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._entries[component]
        arguments = [int32_inputs(inputs)] + ([self._graph_state(entry)] if entry.signature.states else [])
        with _core_ml_errors(entry.name):
            outputs = self._engine.model(entry).predict(*arguments)
        return {spec.name: outputs[spec.name] for spec in entry.signature.outputs}
