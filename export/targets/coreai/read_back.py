"""Reads a saved asset and compares it with the graph that it was made from, without executing it.

The weights stay in the file. The functions name them, and one is read at a time.
"""

import json
import re
import subprocess
from collections.abc import Iterable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from voxport.bundle.errors import IntegrityError
from voxport.bundle.manifest import Precision, file_entry
from voxport.bundle.spec import TensorSpec, graph_state_name
from voxport.export.targets.apple import FLOAT32_KINDS, Array, called_modules, check_weight
from voxport.export.targets.base import Graph
from voxport.export.targets.coreai.bytecode import Bytecode
from voxport.export.targets.coreai.lowering import HASH, METADATA, PROGRAM
from voxport.export.targets.coreai.tools import saved_functions
from voxport.export.targets.coreai.weights import (
    DECODERS,
    PRODUCT,
    TRANSPOSE,
    source_of,
    text_of,
    weight_of,
)
from voxport.export.targets.shared import compare, export_errors
from voxport.model.graph import Component
from voxport.runtime.engines.trial import python_process

CAST, LOOK_UP, ROOT = "coreai.cast", "coreai.gather_nd", "coreai.rsqrt"
SCALED = "coreai.decomposable.broadcasting_mul"
PRODUCTS = {PRODUCT, "coreai.conv2d", "coreai.conv3d", "coreai.conv_transpose2d"}
TENSOR = re.compile(r"tensor<([^,>]*)")  # sizes and element, without hardware constraints: 1x?x37xsi32
ZERO = re.compile(r"dense<0(\.0+e\+00)?> : ")
ELEMENTS = {"float32": "f32", "float16": "f16", "int64": "si32", "int32": "si32"}
# Any in this module: operations and values of the IR, whose stubs name private classes.


def check_parsed(path: Path) -> None:
    """Raises IntegrityError if Core AI cannot parse an asset, which may end the process that tries."""
    command, environment = python_process("voxport.export.targets.coreai.bytecode", str(path.absolute()))
    code = subprocess.run(command, env=environment, capture_output=True, check=False).returncode
    if code:
        raise IntegrityError(f"{path}: Core AI cannot parse it (exit code {code}); export the bundle again")


def check_package(path: Path, graph: Graph, precision: Precision) -> None:
    """Compares the functions of a saved asset with the components of `graph`. Raises ExportError with the
    first difference.

    A weight is read once for all functions that take the same blobs for the same module.
    """
    with export_errors(f"{path.name}: cannot be read back"):
        blobs = _checked_blobs(path)
        with saved_functions(path) as functions:
            public = sorted(name for name, function in functions.items() if "priv" not in function.attributes)
            compare(path.name, "functions", public, sorted(part.name for part in graph.components))
            copies = dict[str, list[str]]()
            for component in graph.components:
                where, function = f"{path.name}: function {component.name}", functions[component.name]
                _check_interface(where, function, component, precision)
                weights, called = stored_weights(function), called_modules(component, graph.module)
                compare(where, "number of quantised weights", len(weights), len(called))
                for weight, (name, part) in zip(weights, called, strict=True):
                    texts = list(map(text_of, weight))
                    offsets = [text for text in texts[2:] if not ZERO.match(text)]
                    compare(where, "zero points, minima and axes of weights", offsets, [])
                    if name not in copies:
                        what = f"{where}: the integers or scales of {name}"
                        check_weight(what, partial(weight_of, blobs, *weight), part)
                    compare(where, f"weights of {name}", texts, copies.setdefault(name, texts))
            for name, function in functions.items():
                operations = _operations(function)
                is_norm = "priv" in function.attributes and ROOT in (op.name for op in operations)
                has_float16 = "f16" in (_element(value) for op in operations for value in op.results)
                is_wrong = has_float16 and (is_norm or precision == "float32")
                compare(f"{path.name}: {name}", "float16 in a float32 program or norm", is_wrong, False)


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
    results = list(zip(_names(function.res_attrs), operations[-1].operands, strict=True))
    outputs = dict(results[len(states) :])  # behind a token for each state
    found = {name: _type(value) for name, value in outputs.items()}
    expected = {spec.name: _expected(spec, found.get(spec.name, "")) for spec in signature.outputs}
    compare(where, "outputs", found, expected)
    exact = _last_products(outputs[spec.name] for spec in signature.outputs if spec.kind in FLOAT32_KINDS)
    products = {op.results[0] for op in operations if op.name in PRODUCTS}
    others = {_element(value) for value in products - exact}
    compare(where, "precision of products", ELEMENTS[precision] in others or not others, True)
    norms = {op.results[0] for op in operations if op.name == ROOT}
    elements = {_element(value) for value in norms | (products & exact)}
    compare(where, "precision of norms and last products", elements - {"f32"}, set())


def _last_products(values: Iterable[Any]) -> set[Any]:
    """The last products before `values`, as in `half`, and all floats that are computed from them."""
    found, open_ = set[Any](), list(values)
    while open_:
        value = open_.pop()
        kind = getattr(value.owner, "name", "")  # none: an argument
        if value in found or not kind or _element(value) not in ("f16", "f32"):
            continue
        found.add(value)
        if kind not in PRODUCTS:
            open_ += value.owner.operands
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
            kind, source = source_of(op.operands[1], CAST, TRANSPOSE)
            if kind in DECODERS:
                weights.append(list(source.operands))
        elif op.name == SCALED:
            (kind, rows), (other, scales) = (source_of(value, CAST) for value in op.operands)
            is_table = kind == other == LOOK_UP and _element(rows.results[0]) == "si8"
            if is_table and rows.operands[1] == scales.operands[1]:
                weights.append([rows.operands[0], scales.operands[0]])
    return weights
