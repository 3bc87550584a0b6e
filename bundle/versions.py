"""Versions of voxport and of the packages it uses, without importing them."""

import platform
from importlib.metadata import PackageNotFoundError, version

ENGINES = ("onnxruntime", "executorch", "coremltools", "coreai", "torch")


def package_version(name: str) -> str:
    """The version of an installed package by its import name; `?` if it is not known."""
    for installed in (name, f"{name}-gpu", f"{name}-core"):  # onnxruntime-gpu, coreai-core
        try:
            return version(installed)
        except PackageNotFoundError:
            continue
    return "?"


def version_text() -> str:
    """One line for each of voxport, Python and the engines."""
    found = {"voxport": package_version("voxport"), "python": platform.python_version()}
    found |= {name: package_version(name) for name in ENGINES}
    return "\n".join(f"{name:<12} {'not installed' if text == '?' else text}" for name, text in found.items())
