"""ONNX Runtime. No other module imports it, so that `bundle` always turns off its telemetry first."""

import voxport.bundle  # noqa: F401

# isort: split
import onnxruntime as ort

__all__ = ["ort"]
