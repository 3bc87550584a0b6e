"""Core AI bundles: the system's runtime on macOS 27, elsewhere the runtime of the package coreai-core.

The package's runtime keeps the outputs of every call, writes to descriptor 2, and aborts on a damaged asset.
It therefore runs in another process, which is replaced when it has kept `BUDGET` bytes. Nothing here was run
on macOS.
"""

import itertools
import logging
import os
import signal
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

from voxport.bundle.errors import EngineUnavailable, IntegrityError, UsageError, VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.bundle.spec import TensorSpec, graph_state_name
from voxport.bundle.versions import package_version
from voxport.runtime.engines import ENGINES
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions
from voxport.runtime.engines.packages import PackageEngine

BUDGET = 256 << 20  # bytes that the other process may keep
KEPT_BY_OUTPUT = 1024  # bytes beside the values
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
PACKAGE_ROOT = Path(__file__).parents[3]  # has `voxport`
IS_MACOS = sys.platform == "darwin"
ARTIFACT_DTYPES = {"int64": "int32"}
Types = dict[str, tuple[list[int], tuple[str, ...]]]  # shape, with -1 for a dynamic size, and possible dtypes
log = logging.getLogger(__name__)


def open_coreai(bundle: Bundle, options: EngineOptions) -> Engine:
    """Core AI of the system on macOS 27, elsewhere the package's in another process.

    Raises UsageError on compute units that only the system's runtime has, or EngineUnavailable.
    """
    units = options.compute_units
    if IS_MACOS:
        try:
            from coreai.runtime import SpecializationOptions

            from voxport.runtime.engines.coreai_process import Program
        except ImportError as error:
            raise _unavailable(bundle.folder, str(error)) from None
        if SpecializationOptions.is_supported():
            return CoreAIEngine(bundle, Program(bundle.folder, _specialization(units)))
    if units not in (None, "all", "cpu"):
        raise UsageError(
            f"compute_units {units}: Core AI runs on the processor here; leave it out, or run on macOS 27",
            field="compute_units",
        )
    return CoreAIEngine(bundle, Worker(bundle.folder))


def _specialization(units: str | None) -> Any:
    """Only `cpu` excludes the other units. A preferred unit leaves operations to others."""
    from coreai import runtime

    options, kind = runtime.SpecializationOptions, {"cpu_and_gpu": "gpu", "cpu_and_ne": "neural_engine"}
    if units in kind:
        return options.from_preferred_compute_unit_kind(getattr(runtime.ComputeUnitKind, kind[units])())
    return options.cpu_only() if units == "cpu" else None


def _unavailable(folder: Path, reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"{folder}: Core AI cannot be loaded: {first_line(reason)}; voxport[coreai] needs "
        f"{ENGINES['coreai'].platforms}"
    )


class States:
    """The number of the states of one graph and one caller, in the process that has them."""

    def __init__(self, key: int):
        self.key = key


class Worker:
    """A `Program` in another process, which is started again after `BUDGET` bytes.

    It then has the same states. If the process ends by itself, or a call is interrupted, the states are lost
    and the next request starts another one. Raises VoxportError, or IntegrityError if the process crashes,
    and RuntimeError on an error of Core AI.
    """

    def __init__(self, folder: Path):
        self._folder, self._files = folder, _files(folder)
        self._states: dict[int, tuple[str, str]] = {}
        self._start()

    def _start(self) -> None:
        if _files(self._folder) != self._files:
            raise IntegrityError(f"{self._folder}: its files changed while they were in use; open it again")
        self._kept, self._owner = 0, os.getpid()
        # compiled assets, which a killed process would leave behind
        scratch = tempfile.TemporaryDirectory(prefix="voxport-")
        self._connection, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        paths = [str(PACKAGE_ROOT), *filter(None, sys.path)]  # this process may have paths of its own
        with theirs:
            command = [sys.executable, "-P", "-m", "voxport.runtime.engines.coreai_process"]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self._folder.absolute()), scratch.name],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # no signals of a terminal
            )
        self._end = weakref.finalize(
            self, _end, self._owner, self._connection, self._process, self._errors, scratch
        )

    def _ask(self, method: str, *arguments: Any) -> Any:
        if os.getpid() != self._owner:
            raise VoxportError(f"{self._folder}: another process opened it; open it in this one too")
        if not self._end.alive:
            self._start()
        try:
            self._connection.send((method, arguments))
            is_result, answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended(arguments[0] if isinstance(arguments[0], str) else "") from None
        except BaseException:  # otherwise the next request gets the answer to an interrupted one
            self._lose()
            raise
        if not is_result:
            raise RuntimeError(answer)
        return answer

    def _ended(self, file: str) -> VoxportError:
        if not self._end.alive:  # while Python ends, in another thread
            return VoxportError(f"{self._folder}: the process of Core AI was ended")
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()[-5:] or [""]
        self._lose()
        log.debug("%s: Core AI ended: %s", self._folder, " | ".join(lines))
        if lines[-1].startswith(("ImportError", "ModuleNotFoundError")):
            return _unavailable(self._folder, lines[-1])
        if -code in CRASHES:
            return IntegrityError(
                f"{self._folder / file}: Core AI ended with signal {-code}: the file is damaged, or memory is"
                f" short, or {tempfile.gettempdir()} is full; fetch or export the bundle again, or free space"
            )
        reason = f"signal {-code}; memory may be short" if code < 0 else f"code {code}: {lines[-1]}"
        return VoxportError(f"{self._folder / file}: the process of Core AI ended with {reason}")

    def _lose(self) -> None:
        self._end()
        self._states.clear()

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

    def forget_states(self, key: int) -> None:
        self._ask("forget_states", key)
        self._states.pop(key, None)

    def call(self, file: str, name: str, inputs: Arrays, key: int | None) -> Arrays:
        if self._kept > BUDGET:
            self._replace()
        outputs: Arrays = self._ask("call", file, name, inputs, key)
        self._kept += sum(array.nbytes + KEPT_BY_OUTPUT for array in outputs.values())
        return outputs

    def _replace(self) -> None:
        log.debug("%s: Core AI keeps %d MB; its process is replaced", self._folder, self._kept >> 20)
        places = dict(self._states)
        held = {
            (key, state): self.read_state(key, state)
            for key, place in places.items()
            for state in self.describe(*place)["state"]
        }
        try:
            self._end()
            self._start()
            for key, place in places.items():
                self.make_states(*place, key)
            for where, values in held.items():
                self.write_state(*where, values)
        except BaseException:  # some states would be zeros
            self._lose()
            raise


def _files(folder: Path) -> set[tuple[str, int, int, int]]:
    """Names the assets as they are on this disk, without reading them."""
    found = {path: path.stat() for path in folder.glob("*.aimodel/*")}
    return {(str(path), each.st_size, each.st_mtime_ns, each.st_ino) for path, each in found.items()}


def _end(owner: int, connection: Any, process: "subprocess.Popen[bytes]", errors: Any, scratch: Any) -> None:
    if os.getpid() != owner:  # a fork of the process that has it
        return
    process.kill()
    connection.close()
    process.wait()
    errors.close()
    scratch.cleanup()


class CoreAIEngine(PackageEngine):
    """Assets open at their first use. All streams share them. `program` is a `Program` or a `Worker`."""

    def __init__(self, bundle: Bundle, program: Any):  # Program is imported on macOS only
        super().__init__()
        self.bundle = bundle
        self.identity = f"Core AI {package_version('coreai-core')}"
        self._program, self._keys = program, itertools.count()
        self._checked: set[str] = set()
        self._unused: deque[int] = deque()  # filled by finalizers, which may run in any thread

    def _ask(self, entry: ComponentEntry, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._program, method)(*arguments)
        except (RuntimeError, OSError) as error:
            raise VoxportError(f"{entry.name}: Core AI failed: {first_line(error)}") from None

    def new_states(self, entry: ComponentEntry) -> States:
        self._check(entry)
        while self._unused:  # before memory is taken for others
            self._ask(entry, "forget_states", self._unused.popleft())
        states = States(next(self._keys))
        self._ask(entry, "make_states", entry.file, entry.entry_point, states.key)
        weakref.finalize(states, self._unused.append, states.key)
        return states

    def read_state(self, entry: ComponentEntry, states: States, name: str) -> np.ndarray:
        found: np.ndarray = self._ask(entry, "read_state", states.key, graph_state_name(entry.graph, name))
        return found

    def write_state(self, entry: ComponentEntry, states: States, name: str, array: np.ndarray) -> None:
        self._ask(entry, "write_state", states.key, graph_state_name(entry.graph, name), array)

    def call(self, entry: ComponentEntry, inputs: Arrays, states: States | None) -> Arrays:
        self._check(entry)
        key = states.key if states else None
        outputs: Arrays = self._ask(entry, "call", entry.file, entry.entry_point, inputs, key)
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
        # verification runs copies in float32
        floats: tuple[str, ...] = (self.bundle.job.compute_precision, "float32")
        states = {graph_state_name(entry.graph, s.name): (list(s.shape), floats) for s in signature.states}
        for kind, expected in (
            ("input", _types(signature.inputs)),
            ("output", _types(signature.outputs)),
            ("state", states),
        ):
            _compare(f"{path}: function {entry.entry_point}: {kind}", found[kind], expected)
        self._checked.add(entry.name)


def _types(specs: tuple[TensorSpec, ...]) -> Types:
    return {
        spec.name: (
            [-1 if isinstance(size, str) else size for size in spec.shape],
            (ARTIFACT_DTYPES.get(spec.dtype, spec.dtype),),
        )
        for spec in specs
    }


def _compare(what: str, found: Mapping[str, tuple[list[int], str]], expected: Types) -> None:
    for name in sorted(found.keys() | expected.keys()):
        shape, dtype = found.get(name, ([], "none"))
        needed, dtypes = expected.get(name, ([], ("none",)))
        # Core AI may not know the size of an output
        if (
            dtype not in dtypes
            or len(shape) != len(needed)
            or any(size not in (-1, other) for size, other in zip(shape, needed, strict=True))
        ):
            raise IntegrityError(
                f"{what} {name}: found {dtype} {shape}, the manifest has {dtypes[0]} {needed}; "
                "export the bundle again"
            )
