"""coreai-torch and the IR of Core AI, imported without warnings about versions.

The lowering of an operator works on the IR, whose Python classes are in a private package. The public
`coreai.authoring` has no way to name a weight and none to read one, so read-back would have to guess which
weight belongs to which product. coreai-core is pinned exactly.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from voxport.bundle.errors import ExportError
from voxport.export.targets.shared import without_warnings

with without_warnings("coreai_torch"):
    import coreai.authoring  # noqa: F401  before its private parts, which import each other
    from coreai._compiler import ir
    from coreai._compiler.dialects import coreai as dialect
    from coreai.authoring import AIModelAsset, Context
    from coreai_torch import TorchConverter, get_decomp_table

__all__ = ["AIModelAsset", "Context", "TorchConverter", "dialect", "get_decomp_table", "ir"]


def check_space(folder: Path, needed: int) -> None:
    """Raises ExportError if the disk has fewer bytes free. LLVM ends the process on a full disk."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ExportError(
            f"{folder}: needs about {needed / 1e9:.3f} GB, {free / 1e9:.3f} GB are free; free space there"
        )


@contextmanager
def saved_functions(path: Path) -> Iterator[dict[str, Any]]:
    """The functions of a saved asset in the IR by name. Maps the file. A damaged one ends the process."""
    with Context():
        functions: Any = AIModelAsset.load(path).program._module._mlir_module.body.operations
        yield {function.sym_name.value: function for function in functions}
