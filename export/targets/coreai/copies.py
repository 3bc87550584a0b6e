"""Copies of assets, which verification runs: wider floats, or products that are summed in float32.

Core AI's runtime for Linux sums products of float16 in float16, in the order of k. No accelerator is known to
do so. A copy shows what the asset gives elsewhere, or its logic without rounding.
"""

import tempfile
import weakref
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.manifest import Bundle, FileEntry, Precision, file_entry
from voxport.export.targets.coreai.bytecode import Bytecode
from voxport.export.targets.coreai.tools import AIModelAsset, Context, dialect, ir
from voxport.export.targets.coreai.weights import constant_op, unpacked
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Engine, EngineOptions

PROGRAM = "main.mlirb"
PRODUCT = "coreai.decomposable.broadcasting_batch_matmul"
DECODERS = ("coreai.blockwise_shift_scale", "coreai.lut_to_dense")
REMOVABLE = (*DECODERS, "coreai.constant", "coreai.transpose")
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
                if operation.name in REMOVABLE and not list(operation.results[0].uses):
                    operation.erase()
            if precision == "float32":
                for operation in _walk(root):
                    _widen(operation, weights)
        program.save_asset(copy)


class Weights:
    """The weights of an asset by name, and constants for a copy in `precision`, each stored once."""

    def __init__(self, blobs: dict[str, np.ndarray], precision: Precision):
        self._blobs, self._precision, self._made = blobs, precision, dict[str, Any]()
        self._are_small = sum(data.nbytes for data in blobs.values()) <= DECODED_BYTES

    def float32(self, name: str, values: np.ndarray) -> Any:
        """The attribute of a new constant. `name` is the same for the same values."""
        if name not in self._made:
            type_ = ir.RankedTensorType.get(values.shape, ir.F32Type.get())
            data = np.ascontiguousarray(values, np.float32)
            self._made[name] = ir.DenseResourceElementsAttr.get_from_buffer(data.data, name, type_)
        return self._made[name]

    def named(self, constant: Any) -> tuple[str, np.ndarray]:
        """The name of a weight, which is empty if its values are written out, and the values."""
        value = constant.attributes["value"]
        type_, text = ir.RankedTensorType(value.type), str(value)
        if not text.startswith("dense_resource<"):
            return "", np.array(ir.DenseElementsAttr(value)).reshape(type_.shape)
        name, element = text.partition("<")[2].partition(">")[0], type_.element_type
        if isinstance(element, ir.IntegerType):
            data = self._blobs[name]
            data = unpacked(data, element.is_signed) if element.width == 4 else data.view(np.int8)
        else:
            data = self._blobs[name].view(np.float16 if isinstance(element, ir.F16Type) else np.float32)
        return name, data[: prod(type_.shape)].reshape(type_.shape)

    def decoded(self, value: Any) -> Any:
        """The float32 constant [K, N] of a weight, or of its transpose [N, K]. None for other values."""
        source = value.owner
        transposes = not isinstance(source, ir.Block) and source.name == "coreai.transpose"
        source = source.operands[0].owner if transposes else source
        if not self._are_small or isinstance(source, ir.Block):
            return None
        if source.name in DECODERS:
            name, values = self._decode(source)
        elif source.name == "coreai.constant":
            name, values = self.named(source)
        else:
            return None
        if not name or values.ndim != 2:
            return None
        return constant_op(self.float32(f"{name}, {transposes}", values.T if transposes else values))

    def _decode(self, decoder: Any) -> tuple[str, np.ndarray]:
        """Zeros follow the two operands: integers and scales [N, K / block], or indices and palettes."""
        (name, stored), (scales, factors) = (self.named(each.owner) for each in list(decoder.operands)[:2])
        factors = factors.astype(np.float32)
        if decoder.name == "coreai.lut_to_dense":
            palettes = factors[:, 0, :, 0]
            rows = stored.reshape(len(palettes), -1).astype(np.intp)
            values = np.take_along_axis(palettes, rows, 1)
        else:
            values = stored.reshape(*factors.shape, -1) * factors[..., None]
        if self._precision == "float16" and "f16" in str(decoder.results[0].type):
            values = values.astype(np.float16)
        return f"{name} {scales}", values.reshape(stored.shape)


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
        name, values = weights.named(operation)
        wide = values.astype(np.float32)
        attributes["value"] = weights.float32(name, wide) if name else ir.DenseElementsAttr.get(wide.data)
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
