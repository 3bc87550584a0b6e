"""Quantised weights of Core ML packages."""

from pathlib import Path

import numpy as np

from voxport.export.targets.coreml.read_back import stored_weights


def read_quantized_weights(path: Path, function: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Integers int8 [N, K] and scales float32 [N, K / block] of every quantised linear and table, in the
    order of use.
    """
    return [weight() for weight in stored_weights(path, function)]
