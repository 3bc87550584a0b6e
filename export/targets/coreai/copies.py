"""Copies of assets, which verification runs: wider floats, or products that are summed in float32.

Core AI's runtime for Linux sums products of float16 in float16, in the order of k. No accelerator is known to
do so. A copy shows what the asset gives elsewhere, or its logic without rounding.
"""

import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.manifest import Bundle, FileEntry, Precision, file_entry
from voxport.export.targets.coreai.bytecode import Bytecode
from voxport.export.targets.coreai.lowering import PROGRAM
from voxport.export.targets.coreai.tools import AIModelAsset, Context, check_space, dialect, ir
from voxport.export.targets.coreai.weights import (
    BLOB,
    CONSTANT,
    DECODERS,
    PRODUCT,
    TRANSPOSE,
    constant_op,
    source_of,
    text_of,
    values_of,
    weight_of,
)
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Engine, EngineOptions

# The runtime decodes a weight at every call, which takes most of the time. Copies of assets of at most
# so many bytes have decoded weights, which take up to 8 times as much memory.
DECODED_BYTES = 64 << 20
# Any in this module: operations, values and types of the IR, whose stubs name private classes.


def open_copies(bundle: Bundle, options: EngineOptions, precision: Precision) -> Engine:
    """An engine that runs copies of the assets. Their folder is removed when the engine is collected.

    float32: every float16 value is widened; constants keep their rounding.
    float16: products of float16 are summed in float32, and rounded once.
    """
    folder = tempfile.TemporaryDirectory(prefix="voxport-")
    copies, files = Path(folder.name), dict[str, FileEntry]()
    for name in sorted({entry.file for entry in bundle.components}):
        write_copy(bundle.folder / name, copies / name, precision)
        files |= {f"{name}/{path.name}": file_entry(path) for path in (copies / name).iterdir()}
    manifest = bundle.manifest.model_copy(update={"files": files, "tokenizer": (), "voices": {}})
    engine = open_engine(Bundle(copies, manifest), options)
    engine.identity += ", a copy in float32" if precision == "float32" else ", a copy with float32 sums"
    weakref.finalize(engine, folder.cleanup)
    return engine


def write_copy(asset: Path, copy: Path, precision: Precision) -> None:
    """Writes the copy of one asset, in which small weights are decoded."""
    weights = Weights(Bytecode(asset / PROGRAM).blobs(), precision)
    with Context():
        program = AIModelAsset.load(asset).program
        root = program._module._mlir_module.operation
        with ir.Location.unknown():
            for operation in list(_walk(root)):
                if operation.name == PRODUCT:
                    _sum_in_float32(operation, weights)
            for operation in reversed(list(_walk(root))):
                if operation.name in (*DECODERS, CONSTANT, TRANSPOSE) and not list(operation.results[0].uses):
                    operation.erase()
            if precision == "float32":
                for operation in _walk(root):
                    _widen(operation, weights)
        check_space(copy.parent, weights.size)
        program.save_asset(copy)


class Weights:
    """The weights of an asset by name, and constants for a copy in `precision`, each stored once."""

    def __init__(self, blobs: dict[str, np.ndarray], precision: Precision):
        self._blobs, self._precision, self._made = blobs, precision, dict[object, Any]()
        self.size = sum(data.nbytes for data in blobs.values())  # stored and new weights
        self._are_small = self.size <= DECODED_BYTES

    def float32(self, key: object, values: np.ndarray) -> Any:
        """The attribute of a new constant. `key` is the same for the same values."""
        if key not in self._made:
            type_ = ir.RankedTensorType.get(values.shape, ir.F32Type.get())
            data, name = np.ascontiguousarray(values, np.float32), f"weight_{len(self._made)}"
            self.size += data.nbytes
            self._made[key] = ir.DenseResourceElementsAttr.get_from_buffer(data.data, name, type_)
        return self._made[key]

    def widened(self, constant: Any) -> Any:
        """The attribute in float32."""
        text, values = text_of(constant), values_of(constant, self._blobs).astype(np.float32)
        return self.float32(text, values) if BLOB.match(text) else ir.DenseElementsAttr.get(values.data)

    def decoded(self, value: Any) -> Any:
        """The float32 constant [K, N] of a weight, or of its transpose [N, K]. None for other values."""
        kind, source = source_of(value, TRANSPOSE)
        if not self._are_small or kind not in (*DECODERS, CONSTANT):
            return None
        is_constant, is_transposed = kind == CONSTANT, source_of(value)[0] == TRANSPOSE
        values = values_of(source.results[0], self._blobs) if is_constant else self._decode(source)
        if values.ndim != 2:
            return None
        key = (is_transposed, *map(text_of, source.results if is_constant else source.operands))
        return constant_op(self.float32(key, values.T if is_transposed else values))

    def _decode(self, decoder: Any) -> np.ndarray:
        stored, factors = weight_of(self._blobs, *decoder.operands)
        factors = factors.astype(np.float32)
        if decoder.name == "coreai.lut_to_dense":
            values = np.take_along_axis(factors, stored.reshape(len(factors), -1).astype(np.intp), 1)
        else:
            values = stored.reshape(*factors.shape, -1) * factors[..., None]
        if self._precision == "float16" and "f16" in str(decoder.results[0].type):
            values = values.astype(np.float16)
        return values.reshape(stored.shape)


def _sum_in_float32(product: Any, weights: Weights) -> None:
    result = product.results[0]
    with ir.InsertionPoint(product):
        operands = [weights.decoded(each) or _cast(each, ir.F32Type.get()) for each in product.operands]
        value = dialect.broadcasting_batch_matmul(*operands)
        result.replace_all_uses_with(_cast(value, ir.RankedTensorType(result.type).element_type))
    product.erase()


def _cast(value: Any, element: Any) -> Any:
    is_equal = ir.RankedTensorType(value.type).element_type == element
    return value if is_equal else dialect.cast(value, element)


def _widen(operation: Any, weights: Weights) -> None:
    """Gives float16 results, arguments, constants and functions the type float32."""
    arguments = (each for region in operation.regions for block in region.blocks for each in block.arguments)
    for value in (*arguments, *operation.results):
        value.set_type(_wider(value.type))
    attributes = operation.attributes
    if operation.name == "coreai.constant" and "f16" in str(attributes["value"].type):
        attributes["value"] = weights.widened(operation.results[0])
    if "function_type" in attributes:
        found = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value)
        inputs, results = (list(map(_wider, side)) for side in (found.inputs, found.results))
        attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def _wider(type_: Any) -> Any:
    text = str(type_)
    return ir.Type.parse(text.replace("xf16>", "xf32>").replace("<f16>", "<f32>")) if "f16" in text else type_


def _walk(operation: Any) -> Iterator[Any]:
    """An operation, and all below it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for each in list(block.operations):
                yield from _walk(each.operation)
