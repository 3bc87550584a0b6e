"""Runs the assets of a bundle with Core AI, for `runtime.engines.coreai`.

`python -m voxport.runtime.engines.coreai_process DESCRIPTOR FOLDER SCRATCH` does so in a process of its own.
It answers the requests of a connection: the name of a method of `Program` and its arguments. Compiled assets
are in SCRATCH, which the process removes.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from coreai.authoring import AIModelAsset
from coreai.runtime import NDArray

from voxport.bundle.errors import VoxportError, first_line

Arrays = dict[str, np.ndarray]


class Program:
    """The assets of a folder, opened at their first use, and the states of callers, by number.

    `options` go to `AIModelAsset.executable`.
    """

    def __init__(self, folder: Path, options: Any = None):  # coreai has no types on Linux
        self._folder, self._options = folder, options
        self._loop = asyncio.new_event_loop()
        # the caller's thread may have a running loop, as in a notebook
        self._thread = ThreadPoolExecutor(1, "Core AI")
        self._opened: dict[str, Any] = {}  # contexts of models, which keep their files
        self._models: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], Any] = {}
        self._states: dict[int, dict[str, NDArray]] = {}

    def ask(self, method: str, *arguments: Any) -> Any:
        """The result of one of the methods below."""
        return getattr(self, method)(*arguments)

    def _wait(self, awaitable: Any) -> Any:
        return self._thread.submit(self._loop.run_until_complete, awaitable).result()

    def _function(self, file: str, name: str) -> Any:
        if file not in self._models:
            self._opened[file] = AIModelAsset.load(self._folder / file).executable(self._options)
            self._models[file] = self._wait(self._opened[file].__aenter__())
        if name not in self._models[file].function_names:
            names = ", ".join(self._models[file].function_names)
            raise RuntimeError(f"no function {name!r}; expected one of {names or 'none'}")
        if (file, name) not in self._functions:
            self._functions[file, name] = self._models[file].load_function(name)
        return self._functions[file, name]

    def make_states(self, file: str, name: str, key: int, shapes: Mapping[str, Sequence[int]]) -> None:
        """Zeros, under the number `key`. `NDArray.from_descriptor` would not clear them."""
        described = self._function(file, name).desc.state_descriptor
        for state, shape in shapes.items():
            self.put_state(key, state, np.zeros(shape, described(state).dtype))

    def read_state(self, key: int, name: str) -> np.ndarray:
        return self._of(key)[name].numpy()

    def write_state(self, key: int, name: str, values: np.ndarray) -> None:
        self.put_state(key, name, np.ascontiguousarray(values, self._of(key)[name].dtype))

    def forget_states(self, key: int) -> None:
        self._states.pop(key, None)

    def places(self) -> list[tuple[int, str]]:
        """The number and the name of every state."""
        return [(key, name) for key, states in self._states.items() for name in states]

    def put_state(self, key: int, name: str, values: np.ndarray) -> None:
        self._states.setdefault(key, {})[name] = NDArray(values)

    def _of(self, key: int) -> dict[str, NDArray]:
        if key not in self._states:
            raise VoxportError(f"{self._folder}: Core AI ended, and the states with it; begin again")
        return self._states[key]

    def call(self, file: str, name: str, inputs: Arrays, key: int | None) -> Arrays:
        """The outputs of a function, in any order. It changes the states `key`."""
        arrays = {each: NDArray(np.ascontiguousarray(values)) for each, values in inputs.items()}
        states = {} if key is None else self._of(key)
        outputs = self._wait(self._function(file, name)(arrays, states))
        return {each: values.numpy() for each, values in outputs.items()}  # copies


def serve(connection: Connection, program: Program) -> None:
    """Answers each request with True and the result, or with False and an error."""
    with suppress(EOFError, OSError):  # the caller ended
        while True:
            method, arguments = connection.recv()
            try:
                answer = True, program.ask(method, *arguments)
            except Exception as error:
                is_ours = isinstance(error, VoxportError | MemoryError)
                answer = False, error if is_ours else RuntimeError(first_line(error))
            connection.send(answer)


if __name__ == "__main__":
    descriptor, folder, tempfile.tempdir = sys.argv[1:]
    serve(Connection(int(descriptor)), Program(Path(folder)))
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)  # the caller may have been killed
