"""Times frames of an ONNX bundle whose values stay on the device, in one form of its graphs.

    python -m tools.gpu.frames BUNDLE VARIANT [--device cpu] [--batch 16] [--frames 50] [--without CALL,...]

The calls of a frame have bound buffers and share one stream of CUDA; the host reads the codes once a frame.
The host makes every call wait in a second run, for the times of the components. Prints a line of JSON after
each run; the second has all figures. VARIANT is `bound`, or some of these joined by +:

    captured   a CUDA graph for each call, not for the frame: copies of states between calls are outside. All
               nodes must be on the device, so the number of cache rows in use, which the processor computes,
               is a constant: all rows
    intb       `ep.cuda.fpa_intb_gemm` for products of 4 and 8 bits
    bfloat16   graphs in bfloat16, made from those in float16

A session that cannot be captured opens without, and the JSON says why. If a call fails, it names it.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, parser

from tools.gpu.chains import CHAINS, Call
from tools.gpu.graphs import set_total, to_bfloat16
from tools.gpu.memory import Host, Stream
from voxport.bundle.errors import VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.bundle.spec import ONNX_PAST, ONNX_PRESENT, Signature, TensorSpec
from voxport.runtime.engines.base import unique_states
from voxport.runtime.engines.cuda import DeviceStates
from voxport.runtime.engines.onnx import CPU, CUDA, ort
from voxport.runtime.families import read_constants

OPTIONS = ("captured", "intb", "bfloat16")
WARM_UP = 5  # frames; CUDA graphs are captured in the first ones
Names = Collection[str]
NO_STATES = Signature((), (), ())


@dataclass(frozen=True)
class Place:
    """An input or output of a call, or its buffer. `shape` has no axis of the batch; `has_batch` adds it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    has_batch: bool = True

    @property
    def slot_bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Run:
    """A call with bound buffers. `states` are those that it changes."""

    component: str
    session: ort.InferenceSession
    binding: ort.IOBinding
    options: ort.RunOptions
    signature: Signature
    states: DeviceStates
    moved: tuple[str, str] | None


class Frames:
    """Frames of a bundle for `batch` utterances, from `position` on. Calls `without` are not captured."""

    def __init__(
        self,
        bundle: Bundle,
        variant: str,
        device: Any,
        batch: int = 1,
        position: int = 0,
        without: Names = (),
    ):
        self._bundle, self._device, self.batch, self.position = bundle, device, batch, position
        self._variant, self._without = {*variant.split("+")}, without
        specs = unique_states(entry.signature for entry in bundle.components)
        self._states = DeviceStates(device, specs, bundle.job.compute_precision, batch)
        self.buffers: dict[str, tuple[int, Place]] = {}
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.not_captured: dict[str, str] = {}
        self.chain = CHAINS[bundle.job.family](read_constants(bundle.job), self._width)
        self._runs = [run for call in self.chain.calls for run in self._bind(call)]
        for name, value in self.chain.values.items():
            self.write(name, value)
        self.write("position", self.read("position") + position)

    def step(self, seconds: dict[str, float] | None = None) -> np.ndarray:
        """One frame -> its result. `seconds` gets the time of each call, which then waits for the device."""
        for run in self._runs:
            started = time.perf_counter()
            try:
                run.session.run_with_iobinding(run.binding, run.options)
            except Exception as error:  # ONNX Runtime's exceptions have no common base below Exception
                raise VoxportError(first_line(error), field=run.component) from None
            if run.moved:
                self._move(*run.moved)
            run.states.keep_results([state.name for state in run.signature.states if not state.cache])
            for state in run.signature.states:
                if state.cache and state.cache.window:
                    rows = state.cache.rows_per_position
                    run.states.move_into_history(state.name, self.position * rows, rows)
            if seconds is not None:
                self._device.finish()
                spent = time.perf_counter() - started
                seconds[run.component] = seconds.get(run.component, 0.0) + spent
        self.position += 1
        return self.read(self.chain.result)

    def read(self, name: str) -> np.ndarray:
        address, place = self.buffers[name]
        found = np.empty((self.batch, *place.shape), place.dtype)
        self._device.copy((found.ctypes.data, found.nbytes), (address, found.nbytes), found.nbytes)
        self._device.finish()
        return found

    def write(self, name: str, value: np.ndarray) -> None:
        """One value for all utterances, or one for each."""
        address, place = self.buffers[name]
        shape = (self.batch,) * place.has_batch + place.shape
        array = np.ascontiguousarray(np.broadcast_to(value, shape), place.dtype)
        self._device.copy((address, array.nbytes), (array.ctypes.data, array.nbytes), array.nbytes)
        self._device.finish()

    def _move(self, source: str, target: str) -> None:
        (start, place), (to, _) = self.buffers[source], self.buffers[target]
        size = place.slot_bytes * self.batch
        self._device.copy((to, size), (start, size), size)

    def on_processor(self) -> dict[str, Counter[str]]:
        """Operators that the device does not run, by file."""
        return {
            file: Counter(
                node.op_type
                for part in session.get_provider_graph_assignment_info()
                if part.ep_name == CPU
                for node in part.get_nodes()
            )
            for file, session in self._sessions.items()
        }

    def _width(self, component: str, name: str) -> int:
        outputs = self._bundle.component(component).signature.outputs
        return next(int(spec.shape[-1]) for spec in outputs if spec.name == name)

    def _bind(self, call: Call) -> list[Run]:
        """One run, or one for each utterance if the component takes one at a time."""
        if source := self.chain.graphs.get(call.component):
            graph = parser.parse_model(source)
            session = self._session(
                call.component, call.component, graph.SerializeToString, {"B": self.batch}
            )
            places = [*map(_place_of, graph.graph.input)], [*map(_place_of, graph.graph.output)]
            return [self._run(call.component, session, places, call, NO_STATES, None)]
        entry = self._bundle.component(call.component)
        count = self.batch if entry.max_batch > 1 else 1
        sizes = {"B": count} | ({"L": cache.rows} if (cache := entry.signature.cache) else {})
        session = self._session(entry.file, call.component, lambda: self._graph(entry), sizes)
        sides = entry.signature.inputs, entry.signature.outputs
        places = [*map(_fixed, sides[0])], [*map(_fixed, sides[1])]
        slots = [None] if count == self.batch else range(self.batch)
        return [self._run(call.component, session, places, call, entry.signature, slot) for slot in slots]

    def _run(
        self,
        component: str,
        session: ort.InferenceSession,
        places: tuple[list[Place], list[Place]],
        call: Call,
        signature: Signature,
        slot: int | None,
    ) -> Run:
        binding, batch = session.io_binding(), self.batch if slot is None else 1
        states = self._states if slot is None else self._states.part(slot, 1)
        for bind, side in zip((binding.bind_input, binding.bind_output), places, strict=True):
            for place in side:
                address = self._address(call.buffer(place.name), place) + (slot or 0) * place.slot_bytes
                shape = (batch,) * place.has_batch + place.shape
                bind(place.name, self._device.name, 0, np.dtype(place.dtype), shape, address)
        kind = TensorProto.BFLOAT16 if "bfloat16" in self._variant else states.dtype
        for state in signature.states:
            name, shape, address = state.name, states.shape(state.name), states.address(state.name)
            result = address if state.cache else states.result_address(name)
            binding.bind_input(ONNX_PAST + name, self._device.name, 0, kind, shape, address)
            binding.bind_output(ONNX_PRESENT + name, self._device.name, 0, kind, shape, result)
        self._ids = getattr(self, "_ids", 0) + 1
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(self._ids))
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return Run(component, session, binding, options, signature, states, call.moved)

    def _address(self, name: str, place: Place) -> int:
        if name not in self.buffers:
            size = place.slot_bytes * (self.batch if place.has_batch else 1)
            self.buffers[name] = self._device.allocate(size), place
        address, buffer = self.buffers[name]
        assert (buffer.slot_bytes, buffer.dtype) == (place.slot_bytes, place.dtype), (
            f"{name}: {place}, {buffer}"
        )
        return address

    def _session(
        self, key: str, component: str, graph: Callable[[], bytes | str], sizes: dict[str, int]
    ) -> ort.InferenceSession:
        if key not in self._sessions:
            is_captured = "captured" in self._variant and component not in self._without
            try:
                self._sessions[key] = self._open(graph(), is_captured, sizes)
            except Exception as error:  # ONNX Runtime's exceptions have no common base below Exception
                if not is_captured:
                    raise
                self.not_captured[component] = first_line(error)
                self._sessions[key] = self._open(graph(), False, sizes)
        return self._sessions[key]

    def _open(self, graph: bytes | str, is_captured: bool, sizes: dict[str, int]) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level, options.enable_mem_reuse = 4, False
        for name, size in {"S": 1, "T": 1, **sizes}.items():
            options.add_free_dimension_override_by_name(name, size)
        settings = {"session.record_ep_graph_assignment_info": "1"}
        settings["session.model_external_initializers_file_folder_path"] = str(self._bundle.folder.resolve())
        if "intb" in self._variant:
            settings["ep.cuda.fpa_intb_gemm"] = "1"
        for key, value in settings.items():
            if not (key.endswith("path") and isinstance(graph, str)):  # a file finds its weights
                options.add_session_config_entry(key, value)
        if not isinstance(self._device, Stream):
            return ort.InferenceSession(graph, options, providers=[CPU], enable_fallback=False)
        cuda = {
            "user_compute_stream": str(self._device.handle.value),
            "enable_cuda_graph": str(int(is_captured)),
        }
        return ort.InferenceSession(graph, options, providers=[(CUDA, cuda), CPU], enable_fallback=False)

    def _graph(self, entry: ComponentEntry) -> bytes | str:
        """The graph in the form of the variant; the path of a file if its weights change."""
        path, changes_weights = self._bundle.folder / entry.file, "bfloat16" in self._variant
        model = onnx.load(path, load_external_data=changes_weights)
        if "captured" in self._variant:
            set_total(model, entry.signature)
        if not changes_weights:
            return bytes(model.SerializeToString())
        to_bfloat16(model)
        changed = Path(self._folder.name, entry.file)
        onnx.save(model, changed, save_as_external_data=True, location=f"{entry.file}.data")
        return str(changed)


def _place_of(value: onnx.ValueInfoProto) -> Place:
    """Of a graph of a chain."""
    kind, dims = value.type.tensor_type, value.type.tensor_type.shape.dim
    has_batch = dims[0].dim_param == "B"
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return Place(value.name, dtype, tuple(dim.dim_value for dim in dims[has_batch:]), has_batch)


def _fixed(spec: TensorSpec) -> Place:
    """Of a component, for one position: `T` is 1, `1920*T` is 1920."""
    sizes = (size if isinstance(size, int) else int(size.rpartition("*")[0] or 1) for size in spec.shape[1:])
    return Place(spec.name, spec.dtype, tuple(sizes))


def measure(frames: Frames, count: int) -> Iterator[dict[str, Any]]:
    """Figures of frames, then the times of calls as well. All utterances of a batch have equal codes."""
    found, times, calls = [frames.step() for _ in range(WARM_UP)], [], []
    for _ in range(count):
        started = time.perf_counter()
        found.append(frames.step())
        times.append((time.perf_counter() - started) * 1000)
    codes = np.stack(found)  # [frame, utterance, codebook]
    row = {
        "frame_ms": statistics.median(times),
        "range_ms": [min(times), max(times)],
        "codes": codes[:, 0, 0].tolist(),
        "checksum": zlib.crc32(codes[:, 0].tobytes()),
        "logits": frames.read("logits")[0, :4].tolist(),  # after the last frame
        "utterances_equal": bool((codes == codes[:, :1]).all()),
        "not_captured": frames.not_captured,
        "on_processor": frames.on_processor(),
    }
    yield row
    for _ in range(count):
        calls.append(dict[str, float]())
        frames.step(calls[-1])
    seconds = {name: statistics.median(each[name] for each in calls) for name in calls[0]}
    yield row | {"calls_ms": {name: value * 1000 for name, value in seconds.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("variant")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--frames", type=int, default=50)
    parser.add_argument("--position", type=int, default=200, help="of the first frame in the caches")
    parser.add_argument("--without", default="", help="calls that are not captured")
    arguments = parser.parse_args()
    if unknown := {*arguments.variant.split("+")} - {"bound", *OPTIONS}:
        parser.error(f"variant {', '.join(unknown)}: expected bound, or some of {', '.join(OPTIONS)}")
    device = Stream() if arguments.device == "cuda" else Host()
    settings = arguments.batch, arguments.position, arguments.without.split(",")
    opened = time.perf_counter()
    try:
        frames = Frames(Bundle(arguments.bundle), arguments.variant, device, *settings)
        seconds = time.perf_counter() - opened
        for row in measure(frames, arguments.frames):
            print(json.dumps({"open_s": seconds, **row}), flush=True)
    except VoxportError as error:
        print(json.dumps({"error": str(error), "call": error.field}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
