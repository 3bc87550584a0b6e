"""One way to run a component, whatever compiled it: an `Engine` opens a bundle, a `Stream` holds one caller's states."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from runtime.errors import EngineUnavailable, UsageError

if TYPE_CHECKING:
    from runtime.bundle import Bundle
    from runtime.engines.base import Engine

PACKAGES = {"onnx": ("onnxruntime",), "executorch": ("executorch", "torch")}


def open_engine(bundle: Bundle, threads: int | None = None) -> Engine:
    """The engine of the bundle's target. `threads` None means all cores. Raises EngineUnavailable or UsageError."""
    target = bundle.manifest.target
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: expected at least 1")
    if target == "coreml":
        raise EngineUnavailable(f"{bundle.folder}: a Core ML bundle; this version of voxport has no engine for it: load it with Core ML on a Mac or phone")
    missing = [package for package in PACKAGES[target] if find_spec(package) is None]
    if missing:
        raise EngineUnavailable(
            f"{bundle.folder}: {', '.join(missing)} not installed; install voxport with its extra [{target}]: pip install '.[{target}]' in its folder"
        )
    if target == "onnx":
        from runtime.engines.onnx import OnnxEngine

        return OnnxEngine(bundle, threads)
    from runtime.engines.executorch import ExecuTorchEngine

    return ExecuTorchEngine(bundle, threads)
