"""One way to run a component, whatever compiled it: an `Engine` opens a bundle, a `Stream` holds one caller's states."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from bundle.errors import EngineUnavailable, UsageError
from runtime.engines.base import EngineOptions

if TYPE_CHECKING:
    from bundle.bundle import Bundle
    from runtime.engines.base import Engine

DEFAULT = EngineOptions()
PACKAGES = {"onnx": ("onnxruntime",), "executorch": ("executorch", "torch"), "coreml": ("coremltools",)}


def open_engine(bundle: Bundle, options: EngineOptions = DEFAULT) -> Engine:
    """The engine of the bundle's target. Raises EngineUnavailable or UsageError."""
    target, threads = bundle.job.target, options.threads
    if target not in PACKAGES:
        known = ", ".join(PACKAGES)
        raise UsageError(f"{bundle.folder}: no engine runs target {target!r}; there are {known}; update voxport")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: expected at least 1")
    for name in ("compute_precision", "compute_units"):
        if target != "coreml" and getattr(options, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')}: for Core ML bundles; {bundle.folder} is for {target}"
            )
    check_installed(target, str(bundle.folder))
    if target == "onnx":
        from runtime.engines.onnx import OnnxEngine

        return OnnxEngine(bundle, threads)
    if target == "coreml":
        from runtime.engines.coreml import open_coreml

        return open_coreml(bundle, options.compute_precision, options.compute_units)
    from runtime.engines.executorch import ExecuTorchEngine

    return ExecuTorchEngine(bundle, threads)


def check_installed(target: str, what: str) -> None:
    """Raises EngineUnavailable that names the extra to install."""
    missing = [package for package in PACKAGES[target] if find_spec(package) is None]
    if missing:
        raise EngineUnavailable(
            f"{what}: {', '.join(missing)} not installed; install voxport with its extra [{target}]: pip install '.[{target}]' in its folder"
        )
