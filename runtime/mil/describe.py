"""Describes a package: interface, operations and weights of its functions, as plain data or as text."""

from collections import Counter
from typing import Any

import numpy as np

from runtime.mil.package import Package
from runtime.mil.program import Constant, Function, Operation
from runtime.mil.types import Array
from runtime.mil.weights import Packed

COMPRESSED = "constexpr_"
# Inputs of the `constexpr_*` operations that hold the compressed values.
COMPRESSED_INPUTS = ("data", "quantized_data", "indices", "nonzero_data", "source_val")
WeightCounts = dict[str, list[int]]  # storage -> [number of arrays, number of values]
Description = dict[str, Any]  # nested plain data, as written by `json.dumps`


def describe(package: Package, name: str | None = None) -> Description:
    """Inputs, states, outputs, operation counts with result types, and weight storage of each function.

    With `name` only that function is described. Raises the errors of `Package.function`.
    """
    names = package.function_names if name is None else (name,)
    return {
        "package": str(package.path),
        "specification": package.specification,
        "default": package.default_function,
        "functions": {name: _describe(package.function(name)) for name in names},
    }


def _describe(function: Function) -> Description:
    counts: Counter[str] = Counter()
    results: dict[str, Counter[str]] = {}
    compressed: dict[str, str] = {}
    weights: WeightCounts = {}
    for operation in function.operations():
        if operation.type == "const":
            _count_constant(weights, operation)
            continue
        counts[operation.type] += 1
        scalars = {output.type.scalar.name for output in operation.outputs}
        results.setdefault(operation.type, Counter()).update(scalars)
        if operation.type.startswith(COMPRESSED):
            storage = _count_compressed(weights, operation)
            compressed |= {output.name: f"{output.type}, held as {storage}" for output in operation.outputs}
    return {
        "opset": function.opset,
        "inputs": {name: function.declared_input(name) for name in function.inputs},
        "states": {name: str(type) for name, type in function.states.items()},
        "outputs": {name: str(type) for name, type in function.outputs.items()},
        "operations": {
            name: {"count": count, "results": dict(sorted(results[name].items()))}
            for name, count in sorted(counts.items())
        },
        "compressed": compressed,
        "weights": {
            storage: {"arrays": arrays, "values": values}
            for storage, (arrays, values) in sorted(weights.items())
        },
    }


def _count(weights: WeightCounts, storage: str, array: Array | Packed) -> None:
    entry = weights.setdefault(storage, [0, 0])
    entry[0] += 1
    entry[1] += array.size


def _count_constant(weights: WeightCounts, operation: Operation) -> None:
    """Counts an uncompressed constant with at least one axis; scalars and strings are ignored."""
    constant = operation.inputs["val"][0]
    if not isinstance(constant, Constant) or not constant.type.fixed:
        return
    if isinstance(constant.value, np.ndarray | Packed):
        _count(weights, f"{operation.outputs[0].type.scalar.name}, plain", constant.value)


def _count_compressed(weights: WeightCounts, operation: Operation) -> str:
    """Counts the compressed values of a `constexpr_*` operation and returns the name of their storage."""
    storage = ""
    for name in COMPRESSED_INPUTS:
        for constant in operation.inputs.get(name, ()):
            if isinstance(constant, Constant) and isinstance(constant.value, np.ndarray | Packed):
                storage = f"{constant.type.scalar.name}, {operation.type}"
                _count(weights, storage, constant.value)
    return storage


def describe_text(description: Description) -> str:
    """The result of `describe` as lines of text."""
    version = description["specification"]
    lines = [f"{description['package']}: specification {version}, for iOS {version + 9} and newer"]
    for name, function in description["functions"].items():
        default = " (default)" if name == description["default"] else ""
        lines.append(f"function {name}{default}, op set {function['opset']}")
        for group in ("inputs", "states", "outputs"):
            lines += [f"  {group[:-1]:<9} {value} {type}" for value, type in function[group].items()]
        for operation, found in function["operations"].items():
            results = ", ".join(f"{scalar} {count}" for scalar, count in found["results"].items())
            lines.append(f"  {found['count']:>5} {operation:<34} {results}".rstrip())
        for storage, counted in function["weights"].items():
            lines.append(f"  weights   {storage}: {counted['values']} values in {counted['arrays']} arrays")
        lines += [f"  weight    {weight} {storage}" for weight, storage in function["compressed"].items()]
    return "\n".join(lines)
