"""Triton's rules of batching and of implicit states, over ONNX Runtime.

The configuration is parsed with Triton's own protobuf. A request is checked against it alone, as the server
does; the manifest of the bundle is not read.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from google.protobuf import text_format

from bundle.manifest import Bundle
from runtime.engines.base import Arrays, Engine, Stream
from runtime.engines.ort import ort

DTYPES = {"TYPE_FP32": "float32", "TYPE_FP16": "float16", "TYPE_INT64": "int64", "TYPE_INT32": "int32"}


def model_config() -> ModuleType:
    """`tritonclient.grpc.model_config_pb2`. The package imports grpc, which this module does not need."""
    package = importlib.util.find_spec("tritonclient")
    assert package and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0], "grpc", "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODEL_CONFIG = model_config()


def read_config(folder: Path) -> Any:
    """The configuration of a model. Raises text_format.ParseError on a field that Triton does not have."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), MODEL_CONFIG.ModelConfig())


def data_type(tensor: Any) -> str:
    return DTYPES[MODEL_CONFIG.DataType.Name(tensor.data_type)]


class RequestError(Exception):
    """The server refuses a request."""


@dataclass
class Request:
    """`sequence` 0 belongs to none. `start` and `end` are the flags of the first and the last request."""

    inputs: Arrays
    sequence: int = 0
    start: bool = False
    end: bool = False


@dataclass
class Model:
    """One loaded model, with the states of its sequences."""

    folder: Path
    sequences: dict[int, Arrays] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = read_config(self.folder)
        assert self.config.name == self.folder.name and self.config.backend == "onnxruntime"
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(
            self.folder / "1" / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
        self._check_against_graph()

    @property
    def states(self) -> Sequence[Any]:
        states: Sequence[Any] = self.config.sequence_batching.state
        return states

    def _check_against_graph(self) -> None:
        """What the ONNX Runtime backend checks when it loads a model, and the dtypes of states."""
        has_batch, found = self.config.max_batch_size > 0, dict[tuple[str, str], Any]()
        for kind, values in (("input", self.session.get_inputs()), ("output", self.session.get_outputs())):
            found |= {(kind, value.name): value for value in values}
        declared = {("input", each.name): each for each in self.config.input}
        declared |= {("output", each.name): each for each in self.config.output}
        declared |= {("input", each.input_name): each for each in self.states}
        declared |= {("output", each.output_name): each for each in self.states}
        assert declared.keys() == found.keys()
        for key, tensor in declared.items():
            dims = list(tensor.dims)
            if getattr(tensor, "reshape", None) is not None and tensor.HasField("reshape"):
                dims = list(tensor.reshape.shape)
            shape = found[key].shape
            assert {"tensor(float)": "float32", "tensor(int64)": "int64"}[found[key].type] == data_type(
                tensor
            )
            if has_batch:
                assert isinstance(shape[0], str), f"{key}: axis 0 is no batch"
                shape = shape[1:]
            assert len(dims) == len(shape), key
            for size, expected in zip(dims, shape, strict=True):
                assert not isinstance(expected, int) or size == expected, key

    def infer(self, requests: Sequence[Request]) -> list[Arrays]:
        """Serves a batch of requests in one call of the graph."""
        if len(requests) > max(1, self.config.max_batch_size):
            raise RequestError(f"{self.config.name}: a batch of {len(requests)}")
        for request in requests:
            self._check(request)
        if len({tuple(map(np.shape, request.inputs.values())) for request in requests}) > 1:
            raise RequestError(f"{self.config.name}: only requests of equal shapes are batched")
        states = [self._states_of(request) for request in requests]
        feed = _joined([self._reshaped(request.inputs) for request in requests]) | _joined(states)
        names = [value.name for value in self.session.get_outputs()]
        results = dict(zip(names, self.session.run(names, feed), strict=True))
        parts = [self._part(results, index) for index in range(len(requests))]
        for request, part in zip(requests, parts, strict=True):
            kept = {each.input_name: part[each.output_name].copy() for each in self.states}
            self.sequences[request.sequence] = kept
            if request.end or not self.states:
                del self.sequences[request.sequence]
        outputs = [each.name for each in self.config.output]
        return [{name: part[name] for name in outputs} for part in parts]

    def _check(self, request: Request) -> None:
        for tensor in self.config.input:
            array, dims = request.inputs.get(tensor.name), list(tensor.dims)
            if self.config.max_batch_size:
                dims = [1, *dims]
            if array is None or array.dtype != data_type(tensor) or array.ndim != len(dims):
                raise RequestError(f"{self.config.name}: input {tensor.name} is {array}, expected {dims}")
            if any(size not in (-1, found) for size, found in zip(dims, array.shape, strict=True)):
                raise RequestError(f"{tensor.name}: {array.shape}, expected {dims}")
        if len(request.inputs) != len(self.config.input):
            raise RequestError(f"{self.config.name}: inputs {', '.join(request.inputs)}")

    def _reshaped(self, inputs: Arrays) -> Arrays:
        found = dict(inputs)
        for tensor in self.config.input:
            if tensor.HasField("reshape"):
                axes = found[tensor.name].shape[: self.config.max_batch_size > 0]
                found[tensor.name] = found[tensor.name].reshape(*axes, *tensor.reshape.shape)
        return found

    def _states_of(self, request: Request) -> Arrays:
        """The states of the last request of the sequence, or the initial ones."""
        if not self.states:
            return {}
        if not request.sequence:
            raise RequestError(f"{self.config.name}: needs a sequence")
        if request.start:
            limit = self.config.sequence_batching.oldest.max_candidate_sequences
            if request.sequence not in self.sequences and len(self.sequences) >= limit:
                raise RequestError(f"{self.config.name}: the sequence waits for another one to end")
            self.sequences[request.sequence] = {each.input_name: self._initial(each) for each in self.states}
        if request.sequence not in self.sequences:
            raise RequestError(f"{self.config.name}: sequence {request.sequence} has not started")
        return self.sequences[request.sequence]

    def _initial(self, state: Any) -> np.ndarray:
        """Without an initial state the server passes uninitialised memory: NaN here."""
        axes = [1] if self.config.max_batch_size else []
        shape = [*axes, *(1 if size == -1 else size for size in state.dims)]
        if not state.initial_state:
            return np.full(shape, np.nan, data_type(state))
        (initial,) = state.initial_state
        assert initial.zero_data and initial.name and list(initial.dims) == list(state.dims)
        assert initial.data_type == state.data_type
        return np.zeros(shape, data_type(state))

    def _part(self, results: Arrays, index: int) -> Arrays:
        if not self.config.max_batch_size:
            return results
        return {name: array[index : index + 1] for name, array in results.items()}


def _joined(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class TritonEngine(Engine):
    """The models of a repository behind the interface of an engine. A stream is one sequence."""

    identity = "Triton's rules"

    def __init__(self, repository: Path, bundle: Bundle) -> None:
        super().__init__()
        self.models = {folder.name: Model(folder) for folder in repository.iterdir()}
        self.graphs = {entry.name: entry.graph for entry in bundle.components}
        self.signatures = {entry.name: entry.signature for entry in bundle.components}
        self._last = 0

    def stream(self) -> "TritonStream":
        self._last += 1
        return TritonStream(self, self._last)


class TritonStream(Stream):
    def __init__(self, engine: TritonEngine, sequence: int) -> None:
        super().__init__(engine.signatures, engine.lock)
        self._engine, self.sequence = engine, sequence
        self._started: set[str] = set()

    def request(self, component: str, inputs: Arrays) -> Request:
        """A client's request: sizes that the configuration has and the graph has not are 1."""
        graph = self._engine.graphs[component]
        config = self._engine.models[graph].config
        arrays = dict(inputs)
        for tensor in config.input:
            if tensor.HasField("reshape"):
                arrays[tensor.name] = arrays[tensor.name].reshape(-1, *tensor.dims)
        start = graph not in self._started
        self._started.add(graph)
        return Request(arrays, self.sequence, start)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        (outputs,) = self._engine.models[self._engine.graphs[component]].infer(
            [self.request(component, inputs)]
        )
        return outputs

    def reset(self) -> None:
        self._started.clear()

    def snapshot(self) -> Arrays:
        raise NotImplementedError("a client of Triton does not read states")

    def restore(self, states: Arrays) -> None:
        raise NotImplementedError("a client of Triton does not write states")
