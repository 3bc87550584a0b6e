"""A `.mlpackage` on disk: functions put together, bytes that repeat, and what was saved read back and compared.

Functions are merged blob by blob and read back one at a time: coremltools' own way holds all weights of all functions in memory,
several times over (8 bytes for each weight of 4 bits, measured), which the published model does not allow.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bundle.cache import coreml_state_name
from bundle.errors import ExportError, first_line
from bundle.spec import TensorSpec
from export.memory import free_memory
from export.targets.base import Graph, example_inputs, quiet_logs, zero_states
from model.component import Component
from quantize.linear import QuantizedEmbedding, QuantizedLinear, linear_kernel
from quantize.palettes import PalettizedLinear
from runtime.mil.weights import ENTRY, HEADER, MARK, VERSION

with quiet_logs(
    "coremltools"
):  # it tells of the framework that only macOS has, and of versions that it has not seen
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load as load_program
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

OPSET, OPSET_NAME = ct.target.iOS18, "CoreML8"  # the first with states and with scales per block
STATE_OPS = {"write_state"}  # what coremltools calls `coreml_update_state`
CONTENT = "Data/com.apple.CoreML"
MODEL, WEIGHTS = f"{CONTENT}/model.mlmodel", f"{CONTENT}/weights/weight.bin"
ALIGNMENT = 64
METADATA = "com.github.apple.coremltools."
Compressed = QuantizedLinear | QuantizedEmbedding | PalettizedLinear
ArrayType = ct.proto.FeatureTypes_pb2.ArrayFeatureType
ARRAY_TYPES = {"float32": ArrayType.FLOAT32, "int64": ArrayType.INT32}
Weight = Callable[[], tuple[np.ndarray, np.ndarray]]


def merge(parts: dict[str, Path], default: str, path: Path) -> None:
    """One package at `path` from the only functions of others, each under its name here; a weight that several hold is in it once."""
    shutil.copytree(next(iter(parts.values())), path)
    merged = ct.proto.Model_pb2.Model()
    with _WeightWriter(path / WEIGHTS) as writer:
        for name, part in parts.items():
            spec = ct.utils.load_spec(str(part / MODEL))
            (function,) = spec.mlProgram.functions.values()
            writer.move(function, part / WEIGHTS)
            merged.specificationVersion = max(merged.specificationVersion, spec.specificationVersion)
            merged.mlProgram.version = spec.mlProgram.version
            merged.mlProgram.functions[name].CopyFrom(function)
            described = spec.description
            merged.description.functions.add(
                name=name, input=described.input, output=described.output, state=described.state
            )
    merged.description.defaultFunctionName = default
    (path / MODEL).write_bytes(merged.SerializeToString(deterministic=True))


class _WeightWriter:
    """A weight file in the making, blob by blob, equal ones once. Its layout stands in `runtime.mil.weights`."""

    def __init__(self, path: Path):
        self._path, self._places = path, dict[bytes, int]()

    def __enter__(self) -> _WeightWriter:
        self._file = self._path.open("wb")
        self._file.write(bytes(ALIGNMENT))
        return self

    def __exit__(self, *error: object) -> None:
        self._file.seek(0)
        self._file.write(HEADER.pack(len(self._places), VERSION))
        self._file.close()

    def move(self, message: Any, source: Path) -> None:
        """Copies what a program's function points at in `source`, and lets it point here."""
        with source.open("rb") as file:
            for value in _blob_values(message):
                value.offset = self._place(file, value.offset)

    def _place(self, file: Any, offset: int) -> int:
        file.seek(offset)
        mark, kind, size, start, padding = ENTRY.unpack(file.read(ENTRY.size))
        if mark != MARK:
            raise ExportError(f"weight file: no blob at {offset}")
        file.seek(start)
        data = file.read(size)
        key = hashlib.blake2b(data).digest() + bytes(
            [kind, padding]
        )  # three times as fast as SHA-256 where the processor has no such instruction
        if key not in self._places:
            self._file.write(bytes(-self._file.tell() % ALIGNMENT))
            place = self._places[key] = self._file.tell()
            self._file.write(ENTRY.pack(mark, kind, size, place + ALIGNMENT, padding).ljust(ALIGNMENT, b"\0"))
            self._file.write(data)
        return self._places[key]


def _blob_values(message: Any) -> Iterator[Any]:
    """All references into a weight file below a protobuf message."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.name == "BlobFileValue":
            yield value
        elif field.message_type.GetOptions().map_entry:
            yield from (
                blob
                for key in value
                if field.message_type.fields_by_name["value"].message_type
                for blob in _blob_values(value[key])
            )
        else:
            yield from (
                blob
                for part in (value if isinstance(value, Sequence) else [value])
                for blob in _blob_values(part)
            )


def normalise(path: Path) -> None:
    """Takes out dates and random identifiers, so that equal models are equal bytes; and coremltools' modes, which let nobody else read."""
    (path / "executorch_debug_handle_mapping.json").unlink(missing_ok=True)
    spec = ct.utils.load_spec(str(path / MODEL))
    for key in [key for key in spec.description.metadata.userDefined if key.startswith(METADATA)]:
        del spec.description.metadata.userDefined[key]
    (path / MODEL).write_bytes(spec.SerializeToString(deterministic=True))
    manifest = json.loads((path / "Manifest.json").read_text())
    names = {old: _identifier(entry["path"]) for old, entry in manifest["itemInfoEntries"].items()}
    manifest["itemInfoEntries"] = {names[old]: entry for old, entry in manifest["itemInfoEntries"].items()}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    # spaced as coremltools does it, which writes this file again whenever it opens the package
    (path / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")

    mask = os.umask(0)
    os.umask(mask)
    for part in path.rglob("*"):
        part.chmod((0o777 if part.is_dir() else 0o666) & ~mask)


def _identifier(place: str) -> str:
    """A UUID that depends on the item's place only."""
    digest = hashlib.sha256(place.encode()).hexdigest().upper()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def read_quantized_weights(path: Path, function: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Integers int8 [N, K] and scales float32 [N, K / block] of every quantised product and table, in the order of use."""
    _, program = _read(path, function)
    return [weight() for weight in _quantized_weights(program.functions[function])]


def check_package(path: Path, graph: Graph, compute_precision: str = "float16") -> None:
    """Reads a saved package and compares its functions with the components. Raises ExportError that names the first difference.

    A function whose operations take the same blobs in the same order as those of one before it has the same weights.
    """
    compared: list[list[list[int]]] = []
    for component in graph.components:
        where = f"{path.name}: function {component.name}"
        try:
            blobs = _check_function(where, path, component, compute_precision)
            if blobs not in compared:
                _check_weights(
                    where,
                    _quantized_weights(_read(path, component.name)[1].functions[component.name]),
                    component,
                    graph.module,
                )
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(
                f"{path.name}: cannot be read back: {type(error).__name__}: {first_line(error)}"
            ) from error
        compared.append(blobs)
        free_memory()  # before the next one's program


def _check_function(where: str, path: Path, component: Component, compute_precision: str) -> list[list[int]]:
    """All but the weights; returns at which places of the weight file the blobs lie that each operation takes."""
    spec = ct.utils.load_spec(str(path / MODEL))
    described = {function.name: function for function in spec.description.functions}
    if component.name not in described or component.name not in spec.mlProgram.functions:
        raise ExportError(f"{where}: missing; there are {', '.join(described) or 'none'}")
    function = spec.mlProgram.functions[component.name]
    block = function.block_specializations[function.opset]
    _check_interface(where, described[component.name], block, component)
    _compare(where, "opset", function.opset, OPSET_NAME)
    products = {
        op.outputs[0].type.tensorType.dataType for op in block.operations if op.type in ("linear", "matmul")
    }
    if products:
        _compare(
            where,
            "compute precision",
            "float16" if ct.proto.MIL_pb2.FLOAT16 in products else "float32",
            compute_precision,
        )
    foreign = {
        op.type for op in block.operations if OPSET not in SSAOpRegistry.core_ops.get(op.type, ())
    } - STATE_OPS
    _compare(where, "operators outside iOS 18", sorted(foreign), [])
    return _blobs_taken(block)


def _blobs_taken(block: Any) -> list[list[int]]:
    """Offsets, operation by operation, of those that take any: their own and through constants and constant expressions."""
    constants: dict[str, list[int]] = {}
    taken = []
    for op in block.operations:
        names = [
            argument.name
            for _, binding in sorted(op.inputs.items())
            for argument in binding.arguments
            if argument.HasField("name")
        ]
        offsets = [value.offset for value in _blob_values(op)] + [
            offset for name in names for offset in constants.get(name, ())
        ]
        if op.type.startswith("const"):
            constants[op.outputs[0].name] = offsets
        elif offsets:
            taken.append(offsets)
    return taken


def _read(path: Path, function: str) -> tuple[Any, Any]:
    """The specification and the program, weights included; of its functions this one alone."""
    with quiet():
        spec = ct.utils.load_spec(str(path / MODEL))
        for other in [name for name in spec.mlProgram.functions if name != function]:
            del spec.mlProgram.functions[other]
        return spec, load_program(spec, spec.specificationVersion, str(path / CONTENT / "weights"))


def _compare(where: str, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise ExportError(f"{where}: {what}: found {found}, expected {expected}")


def _check_interface(where: str, described: Any, block: Any, component: Component) -> None:
    """Names, kinds of numbers and sizes. A size that an output takes from an input is not known."""
    inputs = {part.name: _described(part.type.multiArrayType) for part in described.input}
    _compare(
        where,
        "inputs",
        inputs,
        {
            spec.name: (ARRAY_TYPES[spec.dtype], bounds_of(spec, component))
            for spec in component.signature.inputs
        },
    )
    states = {part.name: _described(part.type.stateType.arrayType) for part in described.state}
    names = [coreml_state_name(component.graph, state.name) for state in component.signature.states]
    expected = {
        name: (ArrayType.FLOAT16, [(size, size) for size in state.shape])
        for name, state in zip(names, component.signature.states, strict=True)
    }
    _compare(where, "states", states, expected)
    kinds = {part.name: part.type.multiArrayType.dataType for part in described.output}
    _compare(
        where, "outputs", kinds, {spec.name: ARRAY_TYPES[spec.dtype] for spec in component.signature.outputs}
    )
    types = {out.name: out.type.tensorType for op in block.operations for out in op.outputs}
    shapes = [
        (
            name,
            [
                size.constant.size if size.HasField("constant") else str(component.signature.dims)
                for size in types[name].dimensions
            ],
        )
        for name in block.outputs
    ]
    fixed = [
        (spec.name, [size if isinstance(size, int) else str(component.signature.dims) for size in spec.shape])
        for spec in component.signature.outputs
    ]
    _compare(where, "shapes of outputs", shapes, fixed)


def _described(array: Any) -> tuple[int, list[tuple[int, int]]]:
    ranges = [(size.lowerBound, size.upperBound) for size in array.shapeRange.sizeRanges]
    return array.dataType, ranges or [(size, size) for size in array.shape]


def _check_weights(where: str, found: list[Weight], component: Component, module: nn.Module) -> None:
    expected = _calls(component, module)
    _compare(where, "number of quantised weights", len(found), len(expected))
    for weight, (name, module) in zip(found, expected, strict=True):
        if not all(map(np.array_equal, weight(), _held(module))):
            raise ExportError(f"{where}: the integers or scales of {name} are not those of the module")


def _held(module: Compressed) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers and scales, or indices and palettes."""
    if isinstance(module, PalettizedLinear):
        return module.get_buffer("indices"), module.get_buffer("palette")
    return module.integers() if isinstance(module, QuantizedLinear) else module.weight, module.scale


def _calls(component: Component, module: nn.Module) -> list[tuple[str, Compressed]]:
    """The quantised modules in the order of their calls; products are left out of the run, so that it costs little."""
    called: list[tuple[str, Compressed]] = []
    parts = {name: part for name, part in module.named_modules() if isinstance(part, Compressed)}
    hooks = [
        part.register_forward_pre_hook(lambda module, _, name=name: called.append((name, module)))
        for name, part in parts.items()
    ]
    inputs = example_inputs(component, {dim: low for dim, (low, _) in component.signature.dims.items()})
    try:
        with torch.no_grad(), linear_kernel(module, _zeros):
            module(*inputs.values(), *zero_states(component))
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _zeros(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> zeros [..., N]."""
    return x.new_zeros(*x.shape[:-1], linear.out_features)


def _quantized_weights(function: Any) -> list[Weight]:
    """A product takes a constant expression; a table is a gather of int8 rows, followed by the gather of their scales."""
    weights: list[Weight] = []
    table = None
    for op in function.operations:
        for source in (
            value.op for value in op.inputs.values() if not isinstance(value, list | tuple) and value.op
        ):
            if source.op_type == "constexpr_lut_to_dense":
                weights.append(partial(_palettized, source))
            if source.op_type == "constexpr_blockwise_shift_scale" and source.offset is None:
                weights.append(partial(_blockwise, source))
        if op.op_type == "gather" and table is not None:
            weights.append(partial(_tabular, table, op))
            table = None
        elif op.op_type == "gather" and op.x.val is not None and op.x.val.dtype == np.int8:
            table = op.x.val
    return weights


def _palettized(op: Any) -> tuple[np.ndarray, np.ndarray]:
    return op.indices.val.astype(np.uint8), op.lut.val[:, 0, :, 0].astype(np.float32)


def _blockwise(op: Any) -> tuple[np.ndarray, np.ndarray]:
    return op.data.val.astype(np.int8), op.scale.val.astype(np.float32)


def _tabular(integers: np.ndarray, scales: Any) -> tuple[np.ndarray, np.ndarray]:
    return integers, scales.x.val.astype(np.float32)


def bounds_of(spec: TensorSpec, component: Component) -> list[tuple[int, int]]:
    """Smallest and largest size of every axis."""
    return [(size, size) if isinstance(size, int) else component.signature.dims[size] for size in spec.shape]


@contextmanager
def quiet() -> Iterator[None]:
    """The converter prints bars on stderr and warns of what is of no use to a user; what goes wrong it raises."""
    with (
        warnings.catch_warnings(),
        quiet_logs("coremltools", "torch", "torchao"),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
