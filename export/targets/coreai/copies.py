"""Copies of assets, which verification runs: wider floats, or products that are summed in float32.

Core AI's runtime for Linux sums products of float16 in float16, in the order of k. No accelerator is known to
do so. An edited copy shows what the asset gives elsewhere, and its logic without any rounding.
"""

import tempfile
import weakref
from collections.abc import Iterator
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
# The runtime decodes a weight at every call, which takes most of the time. A copy of an asset of at most as
# many bytes has decoded weights, if memory holds 8 times as much.
DECODED_BYTES = 64 << 20
# Any in this module: operations, values and types of the IR, whose stubs name private classes.


def open_copies(bundle: Bundle, options: EngineOptions, precision: Precision) -> Engine:
    """An engine that runs copies of the assets in a temporary folder, which goes with the engine.

    float32: every float16 value is widened; constants keep their rounding.
    float16: products of float16 are summed in float32, and rounded once.
    """
    folder = tempfile.TemporaryDirectory(prefix="voxport-")
    copies, files = Path(folder.name), dict[str, FileEntry]()
    for name in sorted({entry.file for entry in bundle.components}):
        write_copy(bundle.folder / name, copies / name, precision)
        files |= {
            str(path.relative_to(copies)): file_entry(path)
            for path in (copies / name).rglob("*")
            if path.is_file()
        }
    update = {"files": files, "tokenizer": (), "voices": {}}
    engine = open_engine(Bundle(copies, bundle.manifest.model_copy(update=update)), options)
    weakref.finalize(engine, folder.cleanup)
    return engine


def write_copy(asset: Path, copy: Path, precision: Precision) -> None:
    """Writes the copy of one asset, in which small weights are decoded."""
    blobs = Bytecode(asset / PROGRAM).by_name()
    with Context():
        program = AIModelAsset.load(asset).program
        module = program._module._mlir_module
        with ir.Location.unknown():
            weights = Weights(blobs, precision)
            if sum(data.nbytes for data in blobs.values()) <= DECODED_BYTES:
                for product in _operations(module, PRODUCT):
                    _decode(product, weights)
            if precision == "float32":
                _widen(module, weights)
            else:
                for product in _operations(module, PRODUCT):
                    _sum_in_float32(product)
            _erase_unused(module)
        program.save_asset(copy)


class Weights:
    """The constants of an asset, and new ones for a copy in `precision`, each stored once."""

    def __init__(self, blobs: dict[str, np.ndarray], precision: Precision):
        self._blobs, self._precision, self._made = blobs, precision, dict[str, Any]()

    def float32(self, name: str, values: np.ndarray) -> Any:
        """A new constant. `name` is the same for the same values."""
        if name not in self._made:
            type_ = ir.RankedTensorType.get(values.shape, ir.F32Type.get())
            data = np.ascontiguousarray(values, np.float32)
            self._made[name] = ir.DenseResourceElementsAttr.get_from_buffer(data.data, name, type_)
        return self._made[name]

    def named(self, constant: Any) -> tuple[str, np.ndarray]:
        """The name of a constant, which is empty if it is written out, and its values."""
        value = constant.attributes["value"]
        type_, element = ir.RankedTensorType(value.type), ir.RankedTensorType(value.type).element_type
        name = resource_name(value)
        if not name:
            return "", np.array(ir.DenseElementsAttr(value)).reshape(type_.shape)
        data = self._blobs[name]
        if isinstance(element, ir.IntegerType):
            data = unpacked(data, element.width, element.is_signed)
        else:
            data = data.view(np.float16 if isinstance(element, ir.F16Type) else np.float32)
        return name, data.reshape(type_.shape)

    def decoded(self, weight: Any) -> tuple[str, np.ndarray] | None:
        """What the operation `weight` gives, in float32 [N, K]. None if it is not a stored weight."""
        if weight.name == "coreai.constant":
            name, values = self.named(weight)
            return (name, values.astype(np.float32)) if name and values.dtype.kind == "f" else None
        if weight.name not in ("coreai.blockwise_shift_scale", "coreai.lut_to_dense"):
            return None
        (name, stored), (scales, factors) = (self.named(each.owner) for each in list(weight.operands)[:2])
        factors = factors.astype(np.float32)
        if weight.name == "coreai.lut_to_dense":
            palettes = factors[:, 0, :, 0]
            rows = stored.reshape(len(palettes), -1)
            values = np.take_along_axis(palettes, rows.astype(np.intp), 1)
        else:
            values = stored.reshape(*factors.shape, -1) * factors[..., None]
        values = values.reshape(stored.shape)
        if self._precision == "float16" and "f16" in str(weight.results[0].type):
            values = values.astype(np.float16).astype(np.float32)
        return f"{name}*{scales}", values


def _decode(product: Any, weights: Weights) -> None:
    """Replaces a weight of a product, with its transposition, by a constant in float32."""
    for index, operand in enumerate(product.operands):
        source, is_transposed = operand.owner, False
        if isinstance(source, ir.Block):
            continue
        if source.name == "coreai.transpose" and not isinstance(source.operands[0].owner, ir.Block):
            source, is_transposed = source.operands[0].owner, True
        found = weights.decoded(source)
        if found is None or found[1].ndim != 2:
            continue
        name, values = found
        if is_transposed:
            name, values = f"{name}.T", values.T
        with ir.InsertionPoint(product):
            value: Any = constant_op(weights.float32(name, values))
            if "f16" in str(operand.type):
                value = dialect.cast(value, ir.F16Type.get())
            product.operands[index] = value


def _sum_in_float32(product: Any) -> None:
    result = product.results[0]
    if "f16" not in str(result.type):
        return
    with ir.InsertionPoint(product):
        value = dialect.broadcasting_batch_matmul(*map(_as_float32, product.operands))
        result.replace_all_uses_with(dialect.cast(value, ir.F16Type.get()))
    product.erase()


def _as_float32(value: Any) -> Any:
    """A decoded weight before its cast, or the value in float32."""
    cast = value.owner
    if not isinstance(cast, ir.Block) and cast.name == "coreai.cast":
        source = cast.operands[0]
        if not isinstance(source.owner, ir.Block) and source.owner.name == "coreai.constant":
            return source
    return dialect.cast(value, ir.F32Type.get())


def _widen(module: Any, weights: Weights) -> None:
    """Gives every float16 value, constant and function the type float32."""
    for each in _walk(module.operation):
        if isinstance(each, ir.Block):
            arguments: Any = each.arguments  # its stub lacks iteration
            for argument in arguments:
                argument.set_type(_wider(argument.type))
            continue
        for result in each.results:
            result.set_type(_wider(result.type))
        if each.name == "coreai.constant" and "f16" in str(each.attributes["value"].type):
            name, values = weights.named(each)
            wide = values.astype(np.float32)
            each.attributes["value"] = (
                weights.float32(f"{name}.f32", wide) if name else ir.DenseElementsAttr.get(wide.data)
            )
        if "function_type" in each.attributes:
            found = ir.FunctionType(ir.TypeAttr(each.attributes["function_type"]).value)
            inputs, results = (list(map(_wider, side)) for side in (found.inputs, found.results))
            each.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def _wider(type_: Any) -> Any:
    text = str(type_)
    return ir.Type.parse(text.replace("xf16>", "xf32>").replace("<f16>", "<f32>")) if "f16" in text else type_


def _erase_unused(module: Any) -> None:
    """Removes the weights, and what decoded them, that no product uses any more."""
    kinds = ("coreai.cast", "coreai.transpose", "coreai.blockwise_shift_scale", "coreai.lut_to_dense")
    for each in reversed([each for each in _walk(module.operation) if not isinstance(each, ir.Block)]):
        if each.name in (*kinds, "coreai.constant") and not any(list(result.uses) for result in each.results):
            each.erase()


def _operations(module: Any, name: str) -> list[Any]:
    return [each for each in _walk(module.operation) if not isinstance(each, ir.Block) and each.name == name]


def _walk(operation: Any) -> Iterator[Any]:
    """Every block and every operation below an operation."""
    for region in operation.regions:
        for block in region.blocks:
            yield block
            for each in list(block.operations):
                yield each.operation
                yield from _walk(each.operation)


def resource_name(value: Any) -> str:
    """The name of the weight that an attribute stands for; empty if its values are written out."""
    text = str(value)
    return text.partition("<")[2].partition(">")[0] if text.startswith("dense_resource") else ""
