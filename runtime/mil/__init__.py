"""Reference executor for Core ML programs (`.mlpackage`), on any system.

The executor reads the specification and the weight file of a package. It executes each MIL operation in
NumPy, as the op set of coremltools defines it. It has the operations and modes that voxport's exports emit,
and refuses others by name. It is written for correctness, not for speed.
"""

from voxport.runtime.mil.describe import describe, describe_text
from voxport.runtime.mil.executor import PRECISIONS, Executor
from voxport.runtime.mil.package import Package
from voxport.runtime.mil.types import CallError, MilError, PackageError, UnsupportedError

__all__ = [
    "PRECISIONS",
    "CallError",
    "Executor",
    "MilError",
    "Package",
    "PackageError",
    "UnsupportedError",
    "describe",
    "describe_text",
]
