"""Runs the assets of a bundle with Core AI, for `runtime.engines.coreai`.

`python -m voxport.runtime.engines.coreai_process DESCRIPTOR FOLDER SCRATCH` does so in a process of its own.
It answers the requests of a connection: the name of a method of `Program` and its arguments. Compiled assets
are in SCRATCH, which the process removes.
"""

import asyncio
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from coreai.authoring import AIModelAsset
from coreai.runtime import NDArray

Arrays = dict[str, np.ndarray]


class Program:
    """The assets of a folder, opened at their first use, and the states of callers, by number.

    `options` go to `AIModelAsset.executable`. Raises RuntimeError of Core AI.
    """

    def __init__(self, folder: Path, options: Any = None):  # coreai has no types on Linux
        self._folder, self._options = folder, options
        self._loop = asyncio.new_event_loop()
        self._opened = AsyncExitStack()
        self._models: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], Any] = {}
        self._states: dict[int, dict[str, NDArray]] = {}

    def _function(self, file: str, name: str) -> Any:
        if file not in self._models:
            asset = AIModelAsset.load(self._folder / file)
            opening = self._opened.enter_async_context(asset.executable(self._options))
            self._models[file] = self._loop.run_until_complete(opening)
        if name not in self._models[file].function_names:
            names = ", ".join(self._models[file].function_names)
            raise RuntimeError(f"no function {name!r}; expected one of {names or 'none'}")
        if (file, name) not in self._functions:
            self._functions[file, name] = self._models[file].load_function(name)
        return self._functions[file, name]

    def describe(self, file: str, name: str) -> dict[str, dict[str, tuple[list[int], str]]]:
        """Shape and dtype of the inputs, outputs and states of a function. A dynamic size is -1."""
        found = self._function(file, name).desc
        return {
            kind: {each: _described(getattr(found, f"{kind}_descriptor")(each)) for each in names}
            for kind, names in (
                ("input", found.input_names),
                ("output", found.output_names),
                ("state", found.state_names),
            )
        }

    def make_states(self, file: str, name: str, key: int) -> None:
        """Zeros, under the number `key`. `NDArray.from_descriptor` would not clear them."""
        for state, (shape, dtype) in self.describe(file, name)["state"].items():
            self._states.setdefault(key, {})[state] = NDArray(np.zeros(shape, dtype))

    def read_state(self, key: int, name: str) -> np.ndarray:
        return self._of(key)[name].numpy()

    def write_state(self, key: int, name: str, values: np.ndarray) -> None:
        states = self._of(key)
        states[name] = NDArray(np.ascontiguousarray(values, states[name].dtype))

    def forget_states(self, key: int) -> None:
        self._states.pop(key, None)

    def _of(self, key: int) -> dict[str, NDArray]:
        if key not in self._states:
            raise RuntimeError("its process ended, and the states with it; begin again")
        return self._states[key]

    def call(self, file: str, name: str, inputs: Arrays, key: int | None) -> Arrays:
        """The outputs of a function, in any order. It changes the states `key`."""
        arrays = {each: NDArray(np.ascontiguousarray(values)) for each, values in inputs.items()}
        states = {} if key is None else self._of(key)
        outputs = self._loop.run_until_complete(self._function(file, name)(arrays, states))
        return {each: values.numpy() for each, values in outputs.items()}  # copies

    def close(self) -> None:
        self._functions.clear()
        self._models.clear()
        self._loop.run_until_complete(self._opened.aclose())
        self._loop.close()


def _described(descriptor: Any) -> tuple[list[int], str]:
    return list(descriptor.shape), str(np.dtype(descriptor.dtype))


def serve(connection: Connection, program: Program) -> None:
    """Answers each request with True and the result, or with False and the text of an error."""
    with suppress(EOFError, OSError):  # the caller ended
        while True:
            method, arguments = connection.recv()
            try:
                answer = True, getattr(program, method)(*arguments)
            except Exception as error:
                answer = False, str(error) or type(error).__name__
            connection.send(answer)
    program.close()


if __name__ == "__main__":
    descriptor, folder, tempfile.tempdir = sys.argv[1:]
    serve(Connection(int(descriptor)), Program(Path(folder)))
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)  # the caller may have been killed
