"""Core AI bundles: the system's runtime on macOS, the runtime of the package coreai-core on Linux.

On Linux the runtime keeps the outputs of every call and the weights of every load, and ends its process on a
damaged asset. It therefore runs in another process, which is replaced when it has kept `BUDGET` bytes.
"""

import itertools
import logging
import os
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.errors import IntegrityError, UsageError, VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.bundle.spec import TensorSpec, graph_state_name
from voxport.bundle.versions import package_version
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions
from voxport.runtime.engines.packages import PackageEngine

BUDGET = 256 << 20  # bytes of outputs
PACKAGE_ROOT = Path(__file__).parents[3]  # has `voxport`; this process may have a path of its own
IS_MACOS = sys.platform == "darwin"
ARTIFACT_DTYPES = {"int64": "int32"}
log = logging.getLogger(__name__)


def open_coreai(bundle: Bundle, options: EngineOptions) -> Engine:
    """Raises UsageError on compute units that this system does not have."""
    units = options.compute_units
    if not IS_MACOS:
        if units not in (None, "cpu"):
            raise UsageError(
                f"compute_units {units}: Core AI runs on the processor here; leave it out, or run on macOS",
                field="compute_units",
            )
        return CoreAIEngine(bundle, Worker(bundle.folder))
    from voxport.runtime.engines.coreai_process import Program

    return CoreAIEngine(bundle, Program(bundle.folder, specialization(units)))


class States:
    """The number of the states of one graph and one caller, in the process that has them."""

    def __init__(self, key: int, entry: ComponentEntry):
        self.key, self.entry = key, entry


class Worker:
    """A `Program` in another process, which is started again after `BUDGET` bytes of outputs.

    It then has the same states. Raises VoxportError, or IntegrityError if the process ends.
    """

    def __init__(self, folder: Path):
        self._folder, self._kept = folder, 0
        self._states: dict[int, tuple[str, str]] = {}
        self._start()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        with theirs:
            command = [sys.executable, "-P", "-m", "voxport.runtime.engines.coreai_process"]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self._folder.absolute())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT), "PYTHONSAFEPATH": "1"},
            )
        self._end = weakref.finalize(self, _end, self._connection, self._process, self._errors)

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self._connection.send((method, arguments))
            is_result, answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if not is_result:
            raise RuntimeError(answer)
        return answer

    def _ended(self) -> VoxportError:
        code = self._process.wait()
        self._errors.seek(0)
        log.info("Core AI ended: %s", self._errors.read().decode(errors="replace")[-500:])
        if code < 0:
            return IntegrityError(
                f"{self._folder}: a program is damaged: Core AI ended with signal {-code}; "
                "fetch or export the bundle again"
            )
        return VoxportError(f"{self._folder}: Core AI ended with code {code}")

    def describe(self, file: str, name: str) -> Any:
        return self._ask("describe", file, name)

    def make_states(self, file: str, name: str, key: int) -> None:
        self._ask("make_states", file, name, key)
        self._states[key] = file, name

    def read_state(self, key: int, name: str) -> np.ndarray:
        found: np.ndarray = self._ask("read_state", key, name)
        return found

    def write_state(self, key: int, name: str, values: np.ndarray) -> None:
        self._ask("write_state", key, name, values)

    def forget_states(self, keys: list[int]) -> None:
        self._ask("forget_states", keys)
        for key in keys:
            self._states.pop(key, None)

    def call(self, file: str, name: str, inputs: Arrays, key: int | None) -> Arrays:
        if self._kept > BUDGET:
            self._restart()
        outputs: Arrays = self._ask("call", file, name, inputs, key)
        self._kept += sum(array.nbytes for array in outputs.values())
        return outputs

    def _restart(self) -> None:
        log.debug("%s: Core AI keeps %d MB; its process is replaced", self._folder, self._kept >> 20)
        held = {
            key: {state: self.read_state(key, state) for state in self.describe(*place)["state"]}
            for key, place in self._states.items()
        }
        self._end()
        self._start()
        self._kept = 0
        for key, states in held.items():
            self._ask("make_states", *self._states[key], key)
            for name, values in states.items():
                self.write_state(key, name, values)

    def close(self) -> None:
        self._end()


def _end(connection: Any, process: "subprocess.Popen[bytes]", errors: Any) -> None:
    connection.close()
    process.kill()
    process.wait()
    errors.close()


class CoreAIEngine(PackageEngine):
    """Assets open at their first use. All streams share them."""

    def __init__(self, bundle: Bundle, program: Any):
        super().__init__()
        self.bundle = bundle
        self.identity = f"Core AI {package_version('coreai-core')}"
        self._program, self._keys = program, itertools.count()
        self._checked: set[str] = set()
        self._unused: deque[int] = deque()  # filled by finalizers, which may run in any thread

    def new_states(self, entry: ComponentEntry) -> States:
        self._check(entry)
        states = States(next(self._keys), entry)
        self._program.make_states(entry.file, entry.entry_point, states.key)
        weakref.finalize(states, self._unused.append, states.key)
        return states

    def read_state(self, entry: ComponentEntry, states: States, name: str) -> np.ndarray:
        found: np.ndarray = self._program.read_state(states.key, graph_state_name(entry.graph, name))
        return found

    def write_state(self, entry: ComponentEntry, states: States, name: str, array: np.ndarray) -> None:
        key = graph_state_name(entry.graph, name)
        dtype = self._program.read_state(states.key, key).dtype
        self._program.write_state(states.key, key, np.ascontiguousarray(array.astype(dtype)))

    def call(self, entry: ComponentEntry, inputs: Arrays, states: States | None) -> Arrays:
        self._check(entry)
        while self._unused:
            self._program.forget_states([self._unused.popleft()])
        try:
            outputs: Arrays = self._program.call(
                entry.file, entry.entry_point, inputs, states.key if states else None
            )
        except RuntimeError as error:
            raise VoxportError(f"{entry.name}: Core AI failed: {first_line(error)}") from None
        return outputs

    def _check(self, entry: ComponentEntry) -> None:
        """Compares a function with the signature of its component, once. Raises IntegrityError."""
        if entry.name in self._checked:
            return
        path = self.bundle.folder / entry.file
        try:
            found = self._program.describe(entry.file, entry.entry_point)
        except RuntimeError as error:
            raise IntegrityError(f"{path}: Core AI cannot open it: {first_line(error)}") from None
        signature = entry.signature
        for kind, expected in (
            ("input", _types(signature.inputs)),
            ("output", _types(signature.outputs)),
            ("state", {graph_state_name(entry.graph, s.name): list(s.shape) for s in signature.states}),
        ):
            _compare(f"{path}: function {entry.entry_point}: {kind}", found[kind], expected)
        self._checked.add(entry.name)


def _types(specs: tuple[TensorSpec, ...]) -> dict[str, list[int]]:
    return {spec.name: [-1 if isinstance(size, str) else size for size in spec.shape] for spec in specs}


def _compare(
    what: str, found: Mapping[str, tuple[list[int], str]], expected: Mapping[str, list[int]]
) -> None:
    for name in sorted(found.keys() | expected.keys()):
        shape, needed = found[name][0] if name in found else None, expected.get(name)
        # Core AI may not know the size of an output
        if (
            shape is None
            or needed is None
            or len(shape) != len(needed)
            or any(size not in (-1, other) for size, other in zip(shape, needed, strict=True))
        ):
            raise IntegrityError(
                f"{what} {name}: found {shape or 'none'}, the manifest has {expected.get(name, 'none')}; "
                "export the bundle again"
            )


def specialization(units: str | None) -> Any:
    """Options for macOS: compute units, or None for the system's choice."""
    from coreai.runtime import SpecializationOptions

    return SpecializationOptions.cpu_only() if units == "cpu" else None
