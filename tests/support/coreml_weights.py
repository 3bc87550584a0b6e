"""Quantised weights of Core ML packages."""

from pathlib import Path

import numpy as np

from export.targets.coreml.package import MODEL
from export.targets.coreml.read_back import stored_weights
from export.targets.coreml.tools import ct


def stored_functions(path: Path) -> list[str]:
    """Names of the functions of a package."""
    return sorted(ct.utils.load_spec(str(path / MODEL)).mlProgram.functions)


def read_quantized_weights(path: Path, function: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Integers int8 [N, K] and scales float32 [N, K / block] of every quantised product and table, in the
    order of use.
    """
    return [weight() for weight in stored_weights(path, function)]
