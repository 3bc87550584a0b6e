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
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.errors import EngineUnavailable, IntegrityError, UsageError, VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.bundle.passed_checks import files_on_disk
from voxport.bundle.versions import package_version
from voxport.runtime.engines import ENGINES
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions
from voxport.runtime.engines.packages import PackageEngine, engine_errors, state_shapes
from voxport.runtime.engines.trial import python_process

BUDGET = 256 << 20  # bytes that the other process may keep
KEPT_BY_OUTPUT = 1024  # bytes beside the values
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
IS_MACOS = sys.platform == "darwin"
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
    return CoreAIEngine(bundle, Worker(bundle))


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
    and the next request starts another one.
    """

    def __init__(self, bundle: Bundle):
        self._bundle, self._files = bundle, files_on_disk(bundle)
        self._start()

    def _start(self) -> None:
        if files_on_disk(self._bundle) != self._files:
            raise IntegrityError(f"{self._bundle.folder}: its files changed while in use; open it again")
        self._kept, self._owner = 0, os.getpid()
        # compiled assets, which a killed process would leave behind
        scratch = tempfile.TemporaryDirectory(prefix="voxport-")
        self._connection, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        arguments = str(theirs.fileno()), str(self._bundle.folder.absolute()), scratch.name
        command, environment = python_process("voxport.runtime.engines.coreai_process", *arguments)
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=environment,
                start_new_session=True,  # no signals of a terminal
            )
        self._end = weakref.finalize(self, _end, self._owner, self._connection, self._process, scratch)

    def ask(self, method: str, *arguments: Any) -> Any:
        """As `Program.ask`. Raises VoxportError, or IntegrityError if the process crashes, and RuntimeError
        on an error of Core AI.
        """
        if os.getpid() != self._owner:
            raise VoxportError(f"{self._bundle.folder}: another process opened it; open it in this one too")
        if not self._end.alive:
            self._start()
        elif method == "call" and self._kept > BUDGET:
            self._replace()
        answer = self._ask(method, *arguments)
        if method == "call":
            self._kept += sum(array.nbytes + KEPT_BY_OUTPUT for array in answer.values())
        return answer

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self._connection.send((method, arguments))
            is_result, answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended(*arguments[:1]) from None
        except BaseException:  # otherwise the next request gets the answer to an interrupted one
            self._end()
            raise
        if not is_result:
            raise answer
        return answer

    def _replace(self) -> None:
        log.debug("%s: Core AI keeps %d MB; its process is replaced", self._bundle.folder, self._kept >> 20)
        states = {place: self._ask("read_state", *place) for place in self._ask("places")}
        try:
            self._end()
            self._start()
            for place, values in states.items():
                self._ask("put_state", *place, values)
        except BaseException:  # some states would be missing
            self._end()
            raise

    def _ended(self, file: object = "") -> VoxportError:
        """The error of an ended process. `file` is an asset, or of no use."""
        path = self._bundle.folder / (file if isinstance(file, str) else "")
        if not self._end.alive:  # while Python ends, in another thread
            return VoxportError(f"{path}: the process of Core AI was ended")
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()[-5:] or [""]
        self._end()
        log.debug("%s: Core AI ended: %s", path, " | ".join(lines))
        if lines[-1].startswith(("ImportError", "ModuleNotFoundError")):
            return _unavailable(self._bundle.folder, lines[-1])
        if -code in CRASHES:
            return IntegrityError(
                f"{path}: Core AI ended with signal {-code}: the file is damaged, or memory is short, or"
                f" {tempfile.gettempdir()} is full; fetch or export the bundle again, or free space"
            )
        reason = f"signal {-code}; memory may be short" if code < 0 else f"code {code}: {lines[-1]}"
        return VoxportError(f"{path}: the process of Core AI ended with {reason}")


def _end(owner: int, connection: Any, process: "subprocess.Popen[bytes]", scratch: Any) -> None:
    if os.getpid() != owner:  # a fork of the process that has it
        return
    process.kill()
    connection.close()
    process.wait()
    scratch.cleanup()


class CoreAIEngine(PackageEngine):
    """Assets open at their first use. All streams share them. `program` is a `Program` or a `Worker`."""

    def __init__(self, bundle: Bundle, program: Any):  # Program is imported on macOS only
        super().__init__(bundle, f"Core AI {package_version('coreai-core')}")
        self._program, self._keys = program, itertools.count()
        self._unused: deque[int] = deque()  # filled by finalizers, which may run in any thread

    def _ask(self, entry: ComponentEntry, method: str, *arguments: Any) -> Any:
        path = self.bundle.folder / entry.file
        with engine_errors("Core AI", path):
            try:
                return self._program.ask(method, *arguments)
            except (KeyError, RuntimeError) as error:  # what fits the manifest does not fit the asset
                raise IntegrityError(f"{path}: {first_line(error)}; export the bundle again") from None

    def new_states(self, entry: ComponentEntry) -> States:
        while self._unused:  # before memory is taken for others
            self._ask(entry, "forget_states", self._unused.popleft())
        states = States(next(self._keys))
        # Core AI refuses a call with states of other names or shapes
        self._ask(entry, "make_states", entry.file, entry.entry_point, states.key, state_shapes(entry))
        weakref.finalize(states, self._unused.append, states.key)
        return states

    def read_state(self, entry: ComponentEntry, states: States, name: str) -> np.ndarray:
        found: np.ndarray = self._ask(entry, "read_state", states.key, name)
        return found

    def write_state(self, entry: ComponentEntry, states: States, name: str, array: np.ndarray) -> None:
        self._ask(entry, "write_state", states.key, name, array)

    def call(self, entry: ComponentEntry, inputs: Arrays, states: States | None) -> Arrays:
        key = states.key if states else None
        outputs: Arrays = self._ask(entry, "call", entry.file, entry.entry_point, inputs, key)
        return outputs
