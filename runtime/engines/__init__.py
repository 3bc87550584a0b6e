"""Engines run the components of a bundle: one row of `ENGINES` per target.

Commands build their arguments from `ENGINE_OPTIONS`, so this module imports no NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from voxport.bundle.errors import EngineUnavailable, UsageError

if TYPE_CHECKING:
    from voxport.bundle.manifest import Bundle
    from voxport.runtime.engines.base import Engine, EngineOptions

CUDA_PRECISION = "float16"  # compute precision of the ONNX bundles that CUDA can run
MAX_THREADS = 1024  # an engine creates all of them when it opens


@dataclass(frozen=True)
class EngineOption:
    """A field of `EngineOptions` that some engines read, and the argument of commands with its name.

    `default` says what happens without it.
    """

    choices: tuple[str, ...]
    help: str
    default: str


ENGINE_OPTIONS = {
    "compute_precision": EngineOption(
        ("float16", "float32"),
        "Core ML bundles: rounding of the reference executor; float16 rounds where the program says, "
        "float32 never",
        "float16; on macOS, Core ML runs instead",
    ),
    "compute_units": EngineOption(
        ("all", "cpu", "cpu_and_gpu", "cpu_and_ne"),
        "Core ML and Core AI bundles on macOS: processors to use",
        "all",
    ),
    "device": EngineOption(
        ("auto", "cpu", "cuda"),
        "ONNX bundles that compute in float16: device to use",
        "auto, which is cuda if onnxruntime-gpu is installed and loads, else cpu",
    ),
}


@dataclass(frozen=True)
class EngineEntry:
    """`attribute` of `module` opens an engine: `attribute(bundle, options) -> Engine`.

    `packages` must be installed; the benchmark reports the version of the first. `options` are the names in
    `ENGINE_OPTIONS` that the engine reads besides `threads`, which it reads if it `has_threads`. Some engines
    abort on a damaged program: one that `needs_trial` is tried in another process first, one that
    `needs_hashes` opens no bundle without comparing them. `platforms` are those that have its packages, if
    they are few. CUDA can run bundles of `cuda_precision`; None: no bundles.
    """

    module: str
    attribute: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()
    has_threads: bool = True
    needs_trial: bool = False
    needs_hashes: bool = False
    platforms: str = ""
    cuda_precision: str | None = None

    def devices(self, compute_precision: str) -> tuple[str, ...]:
        """The devices that can run bundles of a compute precision."""
        return ("cpu", "cuda") if compute_precision == self.cuda_precision else ("cpu",)


ENGINES: dict[str, EngineEntry] = {
    "onnx": EngineEntry(
        "voxport.runtime.engines.onnx",
        "OnnxEngine",
        ("onnxruntime",),
        options=("device",),
        cuda_precision=CUDA_PRECISION,
    ),
    "executorch": EngineEntry(
        "voxport.runtime.engines.executorch", "ExecuTorchEngine", ("executorch", "torch"), needs_trial=True
    ),
    "coreml": EngineEntry(
        "voxport.runtime.engines.coreml",
        "open_coreml",
        ("coremltools",),
        ("compute_precision", "compute_units"),
        has_threads=False,
    ),
    "coreai": EngineEntry(
        "voxport.runtime.engines.coreai",
        "open_coreai",
        ("coreai",),
        ("compute_units",),
        has_threads=False,
        needs_hashes=True,
        platforms="Linux on x86-64 with glibc 2.34 or newer, or macOS 26 or newer on arm64",
    ),
}


def open_engine(bundle: Bundle, options: EngineOptions | None = None) -> Engine:
    """The engine of the bundle's target. Raises EngineUnavailable or UsageError."""
    from voxport.runtime.engines.base import EngineOptions

    check_installed(bundle.job.target, str(bundle.folder))
    entry, options = ENGINES[bundle.job.target], options or EngineOptions()
    check_options(bundle, options)
    engine: Engine = getattr(import_module(entry.module), entry.attribute)(bundle, options)
    return engine


def check_options(bundle: Bundle, options: EngineOptions) -> None:
    """Raises UsageError if the engine of the bundle does not have one of the options."""
    if options.threads is not None and not 1 <= options.threads <= MAX_THREADS:
        raise UsageError(f"threads {options.threads}: expected 1 to {MAX_THREADS}", field="threads")
    having = ENGINES[bundle.job.target].options if bundle.job.target in ENGINES else ()
    for name in ENGINE_OPTIONS:
        if name not in having and getattr(options, name) is not None:
            targets = ", ".join(target for target, row in ENGINES.items() if name in row.options)
            raise UsageError(
                f"{name} applies to bundles for {targets}; {bundle.folder} is for {bundle.job.target}",
                field=name,
            )


def check_installed(target: str, path: str) -> None:
    """Checks that the packages of an engine are installed. `path` is named in errors.

    Raises UsageError for a target without an engine, EngineUnavailable that names the extra to install.
    """
    if target not in ENGINES:
        known = ", ".join(ENGINES)
        raise UsageError(f"{path}: no engine runs target {target!r}; there are {known}; update voxport")
    missing = [package for package in ENGINES[target].packages if find_spec(package) is None]
    if missing:
        platforms = ENGINES[target].platforms
        raise EngineUnavailable(
            f"{path}: {', '.join(missing)} not installed; run pip install 'voxport[{target}]'"
            f"{platforms and f' on {platforms}'}"
        )
