"""A reference executor of ML programs (Core ML's `.mlpackage`), on any machine. Knows nothing of speech or of voxport.

Reads what is on disk, the specification and its weight file, and executes it operation by operation as coremltools' op set
defines them, in NumPy. For being right, not for being fast.
"""

from runtime.mil.describe import describe, describe_text
from runtime.mil.errors import CallError, MilError, PackageError, UnsupportedError
from runtime.mil.executor import PRECISIONS, Executor
from runtime.mil.package import Package

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
