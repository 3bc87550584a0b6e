"""Core ML bundles: through Core ML on macOS, through the MIL reference executor elsewhere.

A package holds a function per component. The functions of one package share its states, which are named
`GRAPH_name`. Core ML has no 64-bit integers, and its states are float16.
"""

import logging
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.errors import IntegrityError, UsageError, VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.bundle.spec import TensorSpec, graph_state_name
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions
from voxport.runtime.engines.packages import PackageEngine
from voxport.runtime.mil import PRECISIONS, Executor, MilError, Package, PackageError
from voxport.runtime.mil.program import Function

log = logging.getLogger(__name__)
UNIT_NAMES = {"all": "ALL", "cpu": "CPU_ONLY", "cpu_and_gpu": "CPU_AND_GPU", "cpu_and_ne": "CPU_AND_NE"}
BOUNDS = re.compile(r"\d+\.\.\d+")  # bounds of a size in the text of a type
MIL_DTYPES = {"float32": "fp32", "int64": "int32", "int32": "int32"}


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


@contextmanager
def _core_ml_errors(what: str) -> Iterator[None]:
    """Turns errors of Core ML into VoxportError. Their types have no common base below Exception."""
    try:
        yield
    except VoxportError:
        raise
    except Exception as error:
        raise VoxportError(f"{what}: Core ML failed: {first_line(error)}") from None


class CoreMLEngine(PackageEngine):
    """Core ML on macOS 15 or newer. Models load and are compiled for this machine on first use.

    The states of a graph are an `MLState`.
    """

    def __init__(self, bundle: Bundle, compute_units: str):
        super().__init__()
        import coremltools

        self.bundle, self.identity = bundle, f"Core ML {platform.mac_ver()[0]}, {compute_units}"
        self._coremltools = coremltools
        self._units = coremltools.ComputeUnit[UNIT_NAMES[compute_units]]
        self._models: dict[tuple[str, str], Any] = {}  # MLModel; coremltools has no types

    def _model(self, entry: ComponentEntry) -> Any:
        key, path = (entry.file, entry.entry_point), str(self.bundle.folder / entry.file)
        if key not in self._models:
            with _core_ml_errors(path):
                self._models[key] = self._coremltools.models.MLModel(
                    path, compute_units=self._units, function_name=entry.entry_point
                )
        return self._models[key]

    def new_states(self, entry: ComponentEntry) -> Any:
        with _core_ml_errors(entry.name):
            return self._model(entry).make_state()

    def read_state(self, entry: ComponentEntry, states: Any, name: str) -> np.ndarray:
        with _core_ml_errors(entry.name):
            return np.asarray(states.read_state(graph_state_name(entry.graph, name)))

    def write_state(self, entry: ComponentEntry, states: Any, name: str, array: np.ndarray) -> None:
        with _core_ml_errors(entry.name):  # float32: coremltools passes no float16 array to Core ML
            states.write_state(graph_state_name(entry.graph, name), array)

    def call(self, entry: ComponentEntry, inputs: Arrays, states: Any) -> Arrays:
        with _core_ml_errors(entry.name):
            outputs: Arrays = self._model(entry).predict(inputs, *([] if states is None else [states]))
        return outputs


class ReferenceEngine(PackageEngine):
    """The MIL reference executor. A function is read on first use; all streams share its weights.

    The states of a graph are arrays, under their names in the package.
    """

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

    def _executor(self, entry: ComponentEntry) -> Executor:
        """The executor of a component. Raises IntegrityError if the package is damaged."""
        key, path = (entry.file, entry.entry_point), self.bundle.folder / entry.file
        if key not in self._executors:
            try:
                if entry.file not in self._packages:
                    self._packages[entry.file] = Package(path)
                function = self._packages[entry.file].function(entry.entry_point)
                _check_interface(function, entry, path)
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
            return self._executor(entry).new_states()

    def read_state(self, entry: ComponentEntry, states: Arrays, name: str) -> np.ndarray:
        return states[graph_state_name(entry.graph, name)]

    def write_state(self, entry: ComponentEntry, states: Arrays, name: str, array: np.ndarray) -> None:
        key = graph_state_name(entry.graph, name)
        states[key] = array.astype(states[key].dtype)

    def call(self, entry: ComponentEntry, inputs: Arrays, states: Arrays | None) -> Arrays:
        with self._mil_errors(entry):
            return self._executor(entry).run(inputs, states)


def _check_interface(function: Function, entry: ComponentEntry, path: Path) -> None:
    """Compares a function with the signature of its component.

    Raises IntegrityError that names the first difference.
    """
    signature = entry.signature
    states = {
        graph_state_name(entry.graph, state.name): f"fp16[{', '.join(map(str, state.shape))}]"
        for state in signature.states
    }
    for kind, found, expected in (
        ("input", function.inputs, {spec.name: _mil_type(spec) for spec in signature.inputs}),
        ("output", function.outputs, {spec.name: _mil_type(spec) for spec in signature.outputs}),
        ("state", function.states, states),
    ):
        types = {name: BOUNDS.sub("?", str(found_type)) for name, found_type in found.items()}
        for name in sorted(types.keys() | expected.keys()):
            if types.get(name) != expected.get(name):
                raise IntegrityError(
                    f"{path}: function {function.name}: {kind} {name}: found {found.get(name, 'none')}, "
                    f"the manifest has {expected.get(name, 'none')}; export the bundle again"
                )


def _mil_type(spec: TensorSpec) -> str:
    """The type as `_check_interface` compares it. A dimension with bounds is `?`."""
    sizes = ", ".join("?" if isinstance(size, str) else str(size) for size in spec.shape)
    return f"{MIL_DTYPES.get(spec.dtype)}[{sizes}]"
