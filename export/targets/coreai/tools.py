"""coreai-torch and the IR of Core AI, imported without warnings about versions.

The lowering of an operator works on the IR, whose Python classes are in a private package. The public
`coreai.authoring` has no way to name a weight and none to read one, so read-back would have to guess which
weight belongs to which product. coreai-core is pinned exactly.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from voxport.export.targets.shared import without_warnings

with without_warnings("coreai_torch"):
    import coreai.authoring  # noqa: F401  before its private parts, which import each other
    from coreai._compiler import ir
    from coreai._compiler.dialects import coreai as dialect
    from coreai.authoring import AIModelAsset, AIProgram, Context
    from coreai.runtime import AIModelAssetMetadata
    from coreai_torch import TorchConverter, get_decomp_table

__all__ = [
    "AIModelAsset",
    "AIModelAssetMetadata",
    "AIProgram",
    "Context",
    "TorchConverter",
    "dialect",
    "get_decomp_table",
    "ir",
    "saved_functions",
    "without_converter_output",
]


@contextmanager
def without_converter_output() -> Iterator[None]:
    """Hides the progress bar and the warnings of the converter. It raises its errors."""
    with without_warnings("coreai_torch"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


@contextmanager
def saved_functions(path: Path) -> Iterator[dict[str, Any]]:
    """The functions of a saved asset in the IR by name. Maps the file. A damaged one ends the process."""
    with Context():
        functions: Any = AIModelAsset.load(path).program._module._mlir_module.body.operations
        yield {function.sym_name.value: function for function in functions}
