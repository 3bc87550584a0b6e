"""Lowering of one graph to a Core ML package: torch traces and coremltools converts each component.

Functions are merged into one package blob by blob, and what varies from run to run is removed. The function
of coremltools for this holds all weights of all functions in memory several times (8 bytes for each weight of
4 bits, measured), which does not fit for the published model.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
from torch import nn

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import Precision
from voxport.bundle.spec import TensorSpec
from voxport.bundle.weight_blobs import BLOCK, ENTRY, HEADER, MARK, VERSION
from voxport.export.memory import free_memory
from voxport.export.targets.apple import FLOAT32_KINDS, traced_weights
from voxport.export.targets.base import Graph
from voxport.export.targets.coreml.kernels import DECOMPOSITIONS, dequantized
from voxport.export.targets.coreml.tools import OPSET, Builder, ct
from voxport.export.targets.shared import export_errors, trace, without_converter_output
from voxport.model.graph import Component

CONTENT = "Data/com.apple.CoreML"
MODEL, WEIGHTS = f"{CONTENT}/model.mlmodel", f"{CONTENT}/weights/weight.bin"
METADATA = "com.github.apple.coremltools."
DTYPES = {"float32": np.float32, "int64": np.int32, "int32": np.int32}  # Core ML has no 64-bit integers
# The passes of coremltools that these programs need, in its order. With all of its passes the predictor of
# Qwen3-TTS takes two thirds longer, and `divide_to_multiply` multiplies by a rounded 1 / x.
PASSES = (
    "cast_optimization",
    "noop_elimination",
    "const_elimination",
    "const_deduplication",
    "remove_symbolic_reshape",
    "reduce_transposes",
    "merge_consecutive_reshapes",
    "merge_consecutive_transposes",
    "fuse_transpose_matmul",
    "reduce_transposes",
    "remove_redundant_ops",
    "dedup_op_and_var_names",
    "add_fp16_cast",
    "add_int16_cast",
    "guard_negative_gather_indices",
    "const_elimination",
    "dead_code_elimination",
    "cast_optimization",
    "dead_code_elimination",
    "add_int16_cast",
    "canonicalize_inplace_pattern",
    "prefer_state_in_downstream",
    "dead_code_elimination",
    "reduce_transposes",
    "remove_redundant_ops",
    "topological_reorder",
)
STATE_PASSES = {"canonicalize_inplace_pattern", "prefer_state_in_downstream"}
# Operations that may follow the last product in float32.
ELEMENTARY = {
    "add",
    "sub",
    "mul",
    "real_div",
    "split",
    "slice_by_index",
    "reshape",
    "expand_dims",
    "squeeze",
    "concat",
    "stack",
    "cast",
    "identity",
}


def lower_graph(graph: Graph, path: Path, precision: Precision) -> None:
    """Writes the package `path`. Raises ExportError."""
    parts: dict[str, Path] = {}
    converted: dict[str, Path] = {}
    with (
        export_errors(f"{graph.name}: Core ML export failed"),
        without_converter_output(),
        TemporaryDirectory(dir=path.parent, prefix=".coreml") as temporary,
    ):
        # otherwise names of operations depend on the programs that this process read or lowered before
        Builder.name_count.clear()
        for component in graph.components:
            bounds = str((component.signature.inputs, component.signature.dims))
            if bounds not in converted:  # components of the same bounds are one program under two names
                converted[bounds] = Path(temporary, f"{component.name}.mlpackage")
                _convert(component, graph.module, precision, converted[bounds])
                free_memory()
            parts[component.name] = converted[bounds]
        merge(parts, graph.first.name, path)
        normalise(path)


def _convert(component: Component, module: nn.Module, precision: Precision, path: Path) -> None:
    signature = component.signature
    with traced_weights(module, dequantized):
        program = trace(component, module)
    exact = [index for index, spec in enumerate(signature.outputs) if spec.kind in FLOAT32_KINDS]
    mixed = ct.transform.FP16ComputePrecision(lambda op: not _stays_float32(op, exact))
    ct.convert(
        program.run_decompositions(DECOMPOSITIONS),
        convert_to="mlprogram",
        inputs=[
            ct.TensorType(spec.name, _shape(spec, component), DTYPES[spec.dtype]) for spec in signature.inputs
        ],
        outputs=[ct.TensorType(spec.name, dtype=DTYPES[spec.dtype]) for spec in signature.outputs],
        minimum_deployment_target=OPSET,
        compute_precision=mixed if precision == "float16" else ct.precision.FLOAT32,
        pass_pipeline=pass_pipeline(component),
        package_dir=str(path),
        skip_model_load=True,
    )


def _stays_float32(op: Any, exact: list[int]) -> bool:
    """Whether an operation (of coremltools, untyped) is the last product before one of the outputs `exact`,
    or follows it.

    A product with a compressed weight is not: the weight is stored in float16, and every call would convert
    all of it.
    """
    return (op.op_type in ELEMENTARY or (op.op_type == "linear" and not _is_compressed(op.weight))) and any(
        var in [op.enclosing_block.outputs[index] for index in exact]
        or any(child.op_type in ELEMENTARY and _stays_float32(child, exact) for child in var.child_ops)
        for var in op.outputs
    )


def _is_compressed(weight: Any) -> bool:
    source = weight.op
    while source is not None and source.op_type == "cast":
        source = source.x.op
    return source is not None and source.op_type.startswith("constexpr")


def pass_pipeline(component: Component) -> ct.PassPipeline:
    """`PASSES`. The two passes that let attention read the new cache fail if other states are written, and
    are left out then.
    """
    left_out = () if all(state.cache for state in component.signature.states) else STATE_PASSES
    return ct.PassPipeline([f"common::{name}" for name in PASSES if name not in left_out])


def _shape(spec: TensorSpec, component: Component) -> list[Any]:
    return [
        high if low == high else ct.RangeDim(low, high, default=low)
        for low, high in bounds_of(spec, component)
    ]


def bounds_of(spec: TensorSpec, component: Component) -> list[tuple[int, int]]:
    """Smallest and largest size of every axis of an input."""
    return [(size, size) if isinstance(size, int) else component.signature.dims[size] for size in spec.shape]


def merge(parts: dict[str, Path], default: str, path: Path) -> None:
    """Writes the package `path` with one function from each of `parts`, under its key. Equal weights are
    stored once.

    Each part has one function. `default` names the default function. Raises ExportError if a weight file is
    damaged.
    """
    shutil.copytree(next(iter(parts.values())), path)
    merged = ct.proto.Model_pb2.Model()
    with (path / WEIGHTS).open("wb") as file:
        writer = _WeightWriter(file)
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
        writer.write_header()
    merged.description.defaultFunctionName = default
    (path / MODEL).write_bytes(merged.SerializeToString(deterministic=True))


class _WeightWriter:
    """Writes a weight file blob by blob, equal blobs once. `bundle.weight_blobs` defines the layout."""

    def __init__(self, file: BinaryIO):
        self._file, self._places = file, dict[bytes, int]()
        file.write(bytes(BLOCK))

    def write_header(self) -> None:
        self._file.seek(0)
        self._file.write(HEADER.pack(len(self._places), VERSION))

    def move(self, message: Any, source: Path) -> None:
        """Copies the blobs of the file `source` that a function refers to, and changes its references to this
        file.
        """
        with source.open("rb") as file:
            for value in blob_values(message):
                value.offset = self._place(file, value.offset)

    def _place(self, file: BinaryIO, offset: int) -> int:
        file.seek(offset)
        mark, kind, size, start, padding = ENTRY.unpack(file.read(ENTRY.size))
        if mark != MARK:
            raise ExportError(f"weight file: no blob at {offset}")
        file.seek(start)
        data = file.read(size)
        # BLAKE2 is three times as fast as SHA-256 on a processor without instructions for it
        key = hashlib.blake2b(data).digest() + bytes([kind, padding])
        if key not in self._places:
            self._file.write(bytes(-self._file.tell() % BLOCK))
            place = self._places[key] = self._file.tell()
            self._file.write(ENTRY.pack(mark, kind, size, place + BLOCK, padding).ljust(BLOCK, b"\0"))
            self._file.write(data)
        return self._places[key]


def blob_values(message: Any) -> Iterator[Any]:
    """All references to a weight file below a protobuf message, in an order that depends on the message only.

    The order of keys in a protobuf map differs from process to process.
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.name == "BlobFileValue":
            yield value
            continue
        if not field.message_type.GetOptions().map_entry:
            parts = value if isinstance(value, Sequence) else [value]
        elif field.message_type.fields_by_name["value"].message_type:
            parts = [value[key] for key in sorted(value)]
        else:
            continue
        for part in parts:
            yield from blob_values(part)


def normalise(path: Path) -> None:
    """Removes dates and random identifiers, so that equal models have equal bytes, and sets the usual file
    modes.

    coremltools writes files that only their owner can read.
    """
    (path / "executorch_debug_handle_mapping.json").unlink(missing_ok=True)
    spec = ct.utils.load_spec(str(path / MODEL))
    for key in [key for key in spec.description.metadata.userDefined if key.startswith(METADATA)]:
        del spec.description.metadata.userDefined[key]
    (path / MODEL).write_bytes(spec.SerializeToString(deterministic=True))
    manifest = json.loads((path / "Manifest.json").read_text())
    names = {old: _identifier(entry["path"]) for old, entry in manifest["itemInfoEntries"].items()}
    manifest["itemInfoEntries"] = {names[old]: entry for old, entry in manifest["itemInfoEntries"].items()}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    # coremltools rewrites this file with these spaces whenever it opens the package
    (path / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")

    mask = os.umask(0)
    os.umask(mask)
    for part in path.rglob("*"):
        part.chmod((0o777 if part.is_dir() else 0o666) & ~mask)


def _identifier(path: str) -> str:
    """A UUID that depends on the path of the item only."""
    digest = hashlib.sha256(path.encode()).hexdigest().upper()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
