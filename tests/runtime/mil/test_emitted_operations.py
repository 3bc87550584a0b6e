"""The executor implements the operations and inputs that exports emit, and no others."""

from pathlib import Path

from voxport.runtime.mil import Package
from voxport.runtime.mil.operations import OPERATION_INPUTS, STRUCTURAL

Inputs = dict[str, set[str]]  # operation -> names of its inputs
# Operations that no shared bundle has, with the option of `voxport export` that emits them.
ELSEWHERE: dict[str, tuple[str, set[str]]] = {
    "constexpr_lut_to_dense": ("--quant lut4", {"indices", "lut"}),
}


def emitted(*folders: Path) -> Inputs:
    found: Inputs = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.mlpackage"))):
        package = Package(path)
        for name in package.function_names:
            for operation in package.function(name).operations:
                found.setdefault(operation.type, set()).update(operation.inputs)
    return found


def implemented() -> Inputs:
    return STRUCTURAL | {
        name: {*signature.parameters, *signature.fixed} for name, signature in OPERATION_INPUTS.items()
    }


def test_the_executor_implements_what_exports_emit(
    bundles: Path, realtime_bundles: Path, qwen_bundles: Path
) -> None:
    """If an operation is missing here, implement it with a test. If nothing emits it any more, delete it."""
    shared = emitted(*(folder / "coreml" for folder in (bundles, realtime_bundles, qwen_bundles)))
    assert not shared.keys() & ELSEWHERE.keys()
    assert shared | {name: inputs for name, (_, inputs) in ELSEWHERE.items()} == implemented()
