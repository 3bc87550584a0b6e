"""Describes a package: interface, operations and weights of its functions, as plain data or as text."""

from collections import Counter
from typing import Any

from voxport.runtime.mil.package import Package
from voxport.runtime.mil.program import Constant, Function, Operation

# Inputs of the `constexpr_*` operations that hold the compressed values.
COMPRESSED_INPUTS = ("data", "indices")
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
    results: dict[str, list[Counter[str]]] = {}  # operation type -> result types of each operation
    compressed: dict[str, str] = {}
    sizes: dict[str, list[int]] = {}  # storage -> number of values of each array
    for operation in function.operations:
        if operation.type != "const":
            scalars = Counter({output.type.scalar.name for output in operation.outputs})
            results.setdefault(operation.type, []).append(scalars)
        if (weight := _stored_weight(operation)) is None:
            continue
        storage, size = weight
        sizes.setdefault(storage, []).append(size)
        if operation.type != "const":
            stored_as = f"{operation.type}, held as {storage}"
            compressed |= {output.name: stored_as for output in operation.outputs}
    return {
        "opset": function.opset,
        "inputs": {name: str(type) for name, type in function.inputs.items()},
        "states": {name: str(type) for name, type in function.states.items()},
        "outputs": {name: str(type) for name, type in function.outputs.items()},
        "operations": {
            name: {"count": len(found), "results": dict(sorted(sum(found, Counter()).items()))}
            for name, found in sorted(results.items())
        },
        "compressed": compressed,
        "weights": {
            storage: {"arrays": len(found), "values": sum(found)} for storage, found in sorted(sizes.items())
        },
    }


def _stored_weight(operation: Operation) -> tuple[str, int] | None:
    """Storage and number of values of a weight that an operation holds.

    It is the compressed input of a `constexpr_*` operation, or an uncompressed constant with an axis.
    """
    is_const, is_compressed = operation.type == "const", operation.type.startswith("constexpr_")
    names = ("val",) if is_const else COMPRESSED_INPUTS if is_compressed else ()
    for value in (value for name in names for value in operation.inputs.get(name, ())):
        if isinstance(value, Constant) and not isinstance(value.value, str):
            storage = f"{value.type.scalar.name}, {'plain' if is_const else operation.type}"
            return (storage, value.value.size) if is_compressed or value.type.fixed else None
    return None


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
