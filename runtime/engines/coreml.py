"""Core ML bundles: through Core ML on macOS, through the MIL reference executor elsewhere.

A package holds a function per component. The functions of one package share its states, which are named
`GRAPH_name`. Core ML has no 64-bit integers, and its states are float16.
"""

import logging
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from voxport.bundle.errors import IntegrityError, UsageError, VoxportError
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions
from voxport.runtime.engines.packages import PackageEngine, engine_errors, state_shapes
from voxport.runtime.mil import PRECISIONS, Executor, MilError, Package, PackageError

log = logging.getLogger(__name__)
UNIT_NAMES = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE"}


def open_coreml(bundle: Bundle, options: EngineOptions) -> Engine:
    """Core ML, or the reference executor on other systems and if `compute_precision` is given.

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


class CoreMLEngine(PackageEngine):
    """Core ML on macOS 15 or newer. Models load and are compiled for this machine on first use.

    The states of a graph are an `MLState`.
    """

    def __init__(self, bundle: Bundle, compute_units: str):
        super().__init__(bundle, f"Core ML {platform.mac_ver()[0]}, {compute_units}")
        import coremltools

        self._coremltools = coremltools
        self._units = coremltools.ComputeUnit[UNIT_NAMES[compute_units]]
        self._models: dict[tuple[str, str], Any] = {}  # MLModel; coremltools has no types

    def open_files(self) -> None:
        with self.lock:
            for entry in self.bundle.components:
                self._model(entry)

    def _model(self, entry: ComponentEntry) -> Any:
        key, path = (entry.file, entry.entry_point), str(self.bundle.folder / entry.file)
        if key not in self._models:
            with engine_errors("Core ML", path):
                self._models[key] = self._coremltools.models.MLModel(
                    path, compute_units=self._units, function_name=entry.entry_point
                )
        return self._models[key]

    def new_states(self, entry: ComponentEntry) -> Any:
        with engine_errors("Core ML", entry.name):
            return self._model(entry).make_state()

    def read_state(self, entry: ComponentEntry, states: Any, name: str) -> np.ndarray:
        with engine_errors("Core ML", entry.name):
            return np.asarray(states.read_state(name))

    def write_state(self, entry: ComponentEntry, states: Any, name: str, array: np.ndarray) -> None:
        with engine_errors("Core ML", entry.name):  # float32: coremltools passes no float16 array to Core ML
            states.write_state(name, array)

    def call(self, entry: ComponentEntry, inputs: Arrays, states: Any) -> Arrays:
        with engine_errors("Core ML", entry.name):
            outputs: Arrays = self._model(entry).predict(inputs, *([] if states is None else [states]))
        return outputs


class ReferenceEngine(PackageEngine):
    """The MIL reference executor. A function is read on first use; all streams share its weights.

    The states of a graph are arrays, under their names in the package.
    """

    def __init__(self, bundle: Bundle, precision: str = "float16"):
        """Raises UsageError on a precision that the executor does not have."""
        super().__init__(bundle, f"executor, {precision}")
        if precision not in PRECISIONS:
            raise UsageError(
                f"compute_precision {precision!r}: expected one of {', '.join(PRECISIONS)}",
                field="compute_precision",
            )
        self._precision, self._packages = precision, dict[str, Package]()
        self._executors: dict[tuple[str, str], Executor] = {}

    def _executor(self, entry: ComponentEntry) -> Executor:
        """The executor of a component. Raises IntegrityError if the package is damaged."""
        key, path = (entry.file, entry.entry_point), self.bundle.folder / entry.file
        if key not in self._executors:
            try:
                if entry.file not in self._packages:
                    self._packages[entry.file] = Package(path)
                function = self._packages[entry.file].function(entry.entry_point)
                self._executors[key] = Executor(function, self._precision)
            except MilError as error:
                raise IntegrityError(str(error)) from None
        return self._executors[key]

    @contextmanager
    def _mil_errors(self, entry: ComponentEntry) -> Iterator[None]:
        try:
            yield
        except PackageError as error:
            raise IntegrityError(f"{self.bundle.folder / entry.file}: {error}") from None
        except MilError as error:
            raise VoxportError(f"{entry.name}: {error}") from None

    def new_states(self, entry: ComponentEntry) -> Arrays:
        with self._mil_errors(entry):
            states = self._executor(entry).new_states()
        found = {name: array.shape for name, array in states.items()}
        if found != state_shapes(entry):
            path = self.bundle.folder / entry.file
            raise IntegrityError(f"{path}: its states are not the manifest's; export the bundle again")
        return states

    def read_state(self, entry: ComponentEntry, states: Arrays, name: str) -> np.ndarray:
        return states[name]

    def write_state(self, entry: ComponentEntry, states: Arrays, name: str, array: np.ndarray) -> None:
        states[name] = array.astype(states[name].dtype)

    def call(self, entry: ComponentEntry, inputs: Arrays, states: Arrays | None) -> Arrays:
        with self._mil_errors(entry):
            return self._executor(entry).run(inputs, states)
