"""What a package holds, for a person or as plain data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from runtime.mil.package import Package
from runtime.mil.program import Constant, Function, Operation
from runtime.mil.weights import Packed

COMPRESSED = "constexpr_"
INTEGERS = (
    "data",
    "quantized_data",
    "indices",
    "nonzero_data",
    "source_val",
)  # the input of a constexpr that holds the most


def describe(package: Package, name: str | None = None) -> dict[str, Any]:
    """All functions, or one: inputs, states, outputs, operations with counts, what is half precision, how weights are held."""
    names = package.function_names if name is None else (name,)
    return {
        "package": str(package.path),
        "specification": package.specification,
        "default": package.default_function,
        "functions": {name: _describe(package.function(name)) for name in names},
    }


def _describe(function: Function) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    compressed: dict[str, str] = {}
    weights: dict[str, list[int]] = {}
    for operation in function.operations():
        if operation.type == "const":
            value = operation.inputs["val"][0]
            if (
                isinstance(value, Constant)
                and isinstance(value.value, np.ndarray | Packed)
                and value.kind.fixed
            ):
                _add(weights, f"{operation.outputs[0].type.scalar.name}, plain", value.value)
            continue
        counts[operation.type] += 1
        kinds.setdefault(operation.type, Counter()).update(
            {output.type.scalar.name for output in operation.outputs}
        )
        if operation.type.startswith(COMPRESSED):
            kind = _add_compressed(weights, operation)
            compressed |= {output.name: f"{output.type}, held as {kind}" for output in operation.outputs}
    return {
        "opset": function.opset,
        "inputs": {
            name: f"{kind.scalar.name}{function.sizes[name]}" if name in function.sizes else str(kind)
            for name, kind in function.inputs.items()
        },
        "states": {name: str(kind) for name, kind in function.states.items()},
        "outputs": {name: str(kind) for name, kind in function.outputs.items()},
        "operations": {
            kind: {"count": count, "results": dict(sorted(kinds[kind].items()))}
            for kind, count in sorted(counts.items())
        },
        "compressed": compressed,
        "weights": {
            kind: {"arrays": arrays, "values": values} for kind, (arrays, values) in sorted(weights.items())
        },
    }


def _add(weights: dict[str, list[int]], kind: str, array: np.ndarray | Packed) -> None:
    entry = weights.setdefault(kind, [0, 0])
    entry[0] += 1
    entry[1] += array.size


def _add_compressed(weights: dict[str, list[int]], operation: Operation) -> str:
    """What it holds its values as."""
    found = ""
    for name in INTEGERS:
        for value in operation.inputs.get(name, ()):
            if isinstance(value, Constant) and isinstance(value.value, np.ndarray | Packed):
                found = f"{value.kind.scalar.name}, {operation.type}"
                _add(weights, found, value.value)
    return found


def describe_text(description: dict[str, Any]) -> str:
    """A few lines per function."""
    version = description["specification"]
    lines = [f"{description['package']}: specification {version}, for iOS {version + 9} and newer"]
    for name, function in description["functions"].items():
        lines.append(
            f"function {name}{' (default)' if name == description['default'] else ''}, op set {function['opset']}"
        )
        for what in ("inputs", "states", "outputs"):
            lines += [f"  {what[:-1]:<9} {entry} {kind}" for entry, kind in function[what].items()]
        for kind, found in function["operations"].items():
            results = ", ".join(f"{scalar} {count}" for scalar, count in found["results"].items())
            lines.append(f"  {found['count']:>5} {kind:<34} {results}".rstrip())
        for kind, held in function["weights"].items():
            lines.append(f"  weights   {kind}: {held['values']} values in {held['arrays']} arrays")
        lines += [f"  weight    {weight} {kind}" for weight, kind in function["compressed"].items()]
    return "\n".join(lines)
