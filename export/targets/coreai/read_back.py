"""Reads a saved asset and compares it with the graph that it was made from, without executing it.

The weights stay in the file. The functions name them, and one is read at a time.
"""

import json
import re
from collections.abc import Iterable
from functools import partial
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.manifest import Precision, file_entry
from voxport.bundle.spec import TensorSpec, graph_state_name
from voxport.export.targets.apple import FLOAT32_KINDS, Array, called_modules, check_weight
from voxport.export.targets.base import Graph
from voxport.export.targets.coreai.bytecode import Bytecode
from voxport.export.targets.coreai.lowering import HASH, METADATA, PROGRAM
from voxport.export.targets.coreai.tools import saved_functions
from voxport.export.targets.coreai.weights import unpacked
from voxport.export.targets.shared import compare, export_errors
from voxport.model.graph import Component

CAST, TRANSPOSE, LOOK_UP = "coreai.cast", "coreai.transpose", "coreai.gather_nd"
PRODUCT = "coreai.decomposable.broadcasting_batch_matmul"
SCALED = "coreai.decomposable.broadcasting_mul"
# Operations that may follow the last product, as in `half`.
MOVES = ("reshape", "slice", "concat", "expand_dims", "shrink_dims", "broadcast_to", "transpose", "cast")
ELEMENTARY = {f"coreai.{name}" for name in MOVES}
ELEMENTARY |= {f"coreai.decomposable.broadcasting_{name}" for name in ("add", "sub", "mul", "divide")}
# Their operands: integers, scales, zero points and minima; or indices, palettes and the axis.
DECODERS = ("coreai.blockwise_shift_scale", "coreai.lut_to_dense")
TENSOR = re.compile(r"tensor<([^,>]*)")  # sizes and element, without hardware constraints: 1x?x37xsi32
BLOB = re.compile(r'dense_resource<"?(.*?)"?> : ')
ZERO = re.compile(r"dense<0(\.0+e\+00)?> : ")
DTYPES = {"si8": np.int8, "f16": np.float16, "f32": np.float32}
ELEMENTS = {"float32": "f32", "float16": "f16", "int64": "si32", "int32": "si32"}
# Any in this module: operations and values of the IR, whose stubs name private classes.


def check_asset(path: Path, graph: Graph, precision: Precision) -> None:
    """Compares the functions of a saved asset with the components of `graph`. Raises ExportError with the
    first difference.

    A weight is read once for all functions that take the same blobs for the same module.
    """
    with export_errors(f"{path.name}: cannot be read back"):
        blobs = _checked_blobs(path)
        with saved_functions(path) as functions:
            public = sorted(name for name, function in functions.items() if "priv" not in function.attributes)
            compare(path.name, "functions", public, sorted(part.name for part in graph.components))
            compared, copies = set[tuple[str, ...]](), dict[str, str]()
            for component in graph.components:
                where, function = f"{path.name}: function {component.name}", functions[component.name]
                _check_interface(where, function, component, precision)
                weights, called = stored_weights(function), called_modules(component, graph.module)
                compare(where, "number of quantised weights", len(weights), len(called))
                for weight, (name, part) in zip(weights, called, strict=True):
                    texts = [_text(value) for value in weight]
                    offsets = [text for text in texts[2:] if not ZERO.match(text)]
                    compare(where, "zero points, minima and axes of weights", offsets, [])
                    if (name, *texts) not in compared:
                        what = f"{where}: the integers or scales of {name}"
                        check_weight(what, partial(read, blobs, *weight), part)
                    compared.add((name, *texts))
                    compare(where, f"copy of {name}", texts[0], copies.setdefault(name, texts[0]))
            values = (
                value for part in functions.values() for op in _operations(part) for value in op.results
            )
            has_float16 = precision == "float32" and "f16" in map(_element, values)
            compare(path.name, "float16 in a float32 program", has_float16, False)


def _checked_blobs(path: Path) -> dict[str, Array]:
    """The weights by name. The hash is checked first, because a damaged program ends the process."""
    compare(path.name, HASH, (path / HASH).read_bytes().hex(), file_entry(path / PROGRAM).sha256)
    metadata = json.loads((path / METADATA).read_text())
    compare(path.name, METADATA, (metadata["assetVersion"], "creationDate" in metadata), ("2.0", False))
    code = Bytecode(path / PROGRAM)
    compare(path.name, "paths of this machine", [text for text in code.strings() if b"/" in text], [])
    return code.blobs()


def _operations(function: Any) -> list[Any]:
    return list(function.regions[0].blocks[0].operations)


def _type(value: Any) -> str:
    """Sizes and element of a tensor, or of the tensor of a state. Empty for anything else."""
    found = TENSOR.search(str(value.type))
    return found[1] if found else ""


def _element(value: Any) -> str:
    return _type(value).rpartition("x")[2]


def _check_interface(where: str, function: Any, component: Component, precision: Precision) -> None:
    """Compares names, types, and the states that are written. The asset has no bounds of dynamic sizes."""
    signature, operations = component.signature, _operations(function)
    states = {
        graph_state_name(component.graph, state.name): "x".join((*map(str, state.shape), ELEMENTS[precision]))
        for state in signature.states
    }
    names = dict(zip(function.arguments, _names(function.arg_attrs), strict=True))
    found = {name: _type(value) for value, name in names.items()}
    compare(where, "inputs", found, states | {spec.name: _expected(spec) for spec in signature.inputs})
    written = [names[op.operands[0]] for op in operations if op.name == "coreai.write_handle"]
    compare(where, "written states", sorted(written), sorted(states))
    results = zip(_names(function.res_attrs), map(_type, operations[-1].operands), strict=True)
    found = dict(list(results)[len(states) :])  # behind a token for each state
    expected = {spec.name: _expected(spec, found.get(spec.name, "")) for spec in signature.outputs}
    compare(where, "outputs", found, expected)
    kinds = {spec.name: spec.kind for spec in signature.outputs}
    outputs = zip(_names(function.res_attrs), operations[-1].operands, strict=True)
    exact = _elementary(value for name, value in outputs if kinds.get(name) in FLOAT32_KINDS)
    products = {op.results[0] for op in operations if op.name == PRODUCT}
    others = {_element(value) for value in products - exact}
    compare(where, "precision of products", ELEMENTS[precision] in others or not others, True)
    norms = {op.results[0] for op in operations if op.name == "coreai.rsqrt"}
    elements = {_element(value) for value in norms | (products & exact)}
    compare(where, "precision of norms and last products", elements - {"f32"}, set())


def _elementary(values: Iterable[Any]) -> set[Any]:
    """Values, and what elementary operations make them of, back to the last products."""
    found, open_ = set[Any](), list(values)
    while open_:
        value = open_.pop()
        if value not in found and getattr(value.owner, "name", "") in ELEMENTARY:
            open_ += value.owner.operands
        found.add(value)
    return found


def _names(attributes: Any) -> list[str]:
    return [part["coreai.name"].value for part in attributes]


def _expected(spec: TensorSpec, found: str = "") -> str:
    """The converter does not see that some outputs have a fixed size. Those sizes are taken from `found`."""
    known = zip_longest(spec.shape, found.split("x")[: len(spec.shape)])
    sizes = ("?" if isinstance(size, str) or other == "?" else str(size) for size, other in known)
    return "x".join((*sizes, ELEMENTS[spec.dtype]))


def stored_weights(function: Any) -> list[list[Any]]:
    """The constants of the quantised weights of a function, in the order of the products and look-ups that
    take them: integers, scales and offsets. A look-up multiplies rows of int8 by their scales.
    """
    weights = []
    for op in _operations(function):
        if op.name == PRODUCT:
            kind, source = _source(op.operands[1], CAST, TRANSPOSE)
            if kind in DECODERS:
                weights.append(list(source.operands))
        elif op.name == SCALED:
            (kind, rows), (other, scales) = (_source(value, CAST) for value in op.operands)
            is_table = kind == other == LOOK_UP and _element(rows.results[0]) == "si8"
            if is_table and rows.operands[1] == scales.operands[1]:
                weights.append([rows.operands[0], scales.operands[0]])
    return weights


def _source(value: Any, *between: str) -> tuple[str, Any]:
    """The operation that makes a value, with its name, before those named. No name: an argument."""
    while (kind := getattr(value.owner, "name", "")) in between:
        value = value.owner.operands[0]
    return kind, value.owner


def _text(constant: Any) -> str:
    """A small constant, or the name of its blob. Empty if the value is computed."""
    return str(constant.owner.attributes["value"]) if _source(constant)[0] == "coreai.constant" else ""


def read(blobs: dict[str, Array], integers: Any, scales: Any, *_: Any) -> tuple[Array, Array]:
    """Integers [N, K] and scales [N, blocks], or indices and palettes."""
    factors = _array(scales, blobs)
    return _array(integers, blobs), factors[:, 0, :, 0] if factors.ndim == 4 else factors


def _array(constant: Any, blobs: dict[str, Array]) -> Array:
    *sizes, element = _type(constant).split("x")
    shape = [int(size) for size in sizes]
    if not (found := BLOB.match(_text(constant))):
        return np.array(constant.owner.attributes["value"], DTYPES[element])  # other types end the process
    data = blobs[found[1]]
    values = unpacked(data, element == "si4") if element.endswith("i4") else data.view(DTYPES[element])
    return values[: prod(shape)].reshape(shape)
