"""Reads a saved program back: its quantised linears have the arithmetic, integers and scales of the module.

Linears are in delegates of XNNPACK. Each delegate is a flatbuffer that names its constants.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader, _get_schema_bytes
from executorch.exir._serialize._flatbuffer import _run_flatc
from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program
from executorch.exir._serialize._program import _ExtendedHeader, _get_extended_header

from voxport.bundle.errors import ExportError
from voxport.export.targets.base import Graph
from voxport.export.targets.shared import StoredLinear, compare_linears, export_errors, hash_of
from voxport.quantize.modules import QuantizedLinear

# Any in this module: delegates as JSON, and objects of ExecuTorch, which have no types
Delegate = dict[str, Any]
BITS = {"xnn_datatype_qbint4": 4, "xnn_datatype_qcint4": 4, "xnn_datatype_qcint8": 8}
INTEGER_ACTIVATIONS = "xnn_datatype_qdint8"


def check_program(path: Path, graph: Graph) -> str:
    """Compares every quantised linear of the file with the linears of `graph`. Raises ExportError.

    Returns a description, empty if nothing is quantised. One weight at a time is in memory.
    """
    with export_errors(f"{path.name}: cannot be read back"), path.open("rb") as file:

        def read(start: int, size: int) -> bytes:
            file.seek(start)
            return file.read(size)

        header: Any = _get_extended_header(read(0, _ExtendedHeader.NUM_HEAD_BYTES))
        program: Any = _flatbuffer_to_program(read(0, header.program_size))

        def segment(index: int) -> bytes:
            place = program.segments[index]
            return read(header.segment_base_offset + place.offset, place.size)

        constants = {entry.key: entry.segment_index for entry in program.named_data or ()}
        delegates = [part.processed.index for plan in program.execution_plan for part in plan.delegates]
        found = {
            linear: f"delegate {index}"
            for index, delegate in enumerate(_decode(map(segment, delegates)))
            for linear in _linears(delegate, lambda key: hash_of(segment(constants[key])))
        }
    return compare_linears(path.name, graph, _of_linear, found)


def _decode(delegates: Iterator[bytes]) -> Iterator[Delegate]:
    with TemporaryDirectory() as folder:
        schema, files = Path(folder, "schema.fbs"), []
        schema.write_bytes(_get_schema_bytes())
        for index, content in enumerate(delegates):
            header = XNNHeader.from_bytes(content[: XNNHeader.EXPECTED_LENGTH])
            files.append(Path(folder, f"{index}.bin"))
            files[-1].write_bytes(content[header.flatbuffer_offset :][: header.flatbuffer_size])
        if files:
            options = ["--json", "--defaults-json", "--strict-json", "-o", folder]
            _run_flatc([*options, str(schema), "--", *map(str, files)])
        for file in files:
            # flatc writes the open bound of a ReLU as "inf"
            yield json.loads(re.sub(r": (-?)inf\b", r": \1Infinity", file.with_suffix(".json").read_text()))


def _linears(delegate: Delegate, hash_of_constant: Callable[[str], str]) -> Iterator[StoredLinear]:
    """The quantised linears of a delegate. Raises ExportError on float activations."""
    keys = [entry["named_key"] for entry in delegate["constant_data"]]
    values = [value["xvalue_union"] for value in delegate["xvalues"]]
    tensors = {tensor["id_out"]: tensor for tensor in (value.get("tensor_value", value) for value in values)}
    scales = {
        value["tensor_value"]["id_out"]: value["quant_params"] for value in values if "quant_params" in value
    }
    for node in (node["xnode_union"] for node in delegate["xnodes"]):
        if "filter_id" not in node or node["filter_id"] not in scales:
            continue
        weight, quantization = tensors[node["filter_id"]], scales[node["filter_id"]]
        activations = tensors[node["input1_id"]]["datatype"]
        if activations != INTEGER_ACTIVATIONS:
            raise ExportError(f"a linear has activations of {activations}, expected {INTEGER_ACTIVATIONS}")
        block = quantization.get("group_size", weight["dims"][-1])
        integers, scale = (
            hash_of_constant(keys[place])
            for place in (weight["constant_buffer_idx"], quantization["scale_buffer_idx"])
        )
        yield StoredLinear(BITS[weight["datatype"]], block, integers, scale)


def _of_linear(linear: QuantizedLinear) -> StoredLinear:
    """Groups have scales in bfloat16. The first of two 4-bit integers in a byte is in its low half."""
    integers, scale, bits = linear.integers(), linear.scale, linear.scheme.bits
    if bits == 4:
        shifted = (F.pad(integers, (0, linear.in_features % 2)) + 8).view(torch.uint8)
        integers = shifted[:, ::2] | shifted[:, 1::2] << 4
    if linear.scheme.group:
        scale = scale.bfloat16().view(torch.uint16)
    return StoredLinear(bits, linear.block, hash_of(integers.numpy()), hash_of(scale.numpy()))
