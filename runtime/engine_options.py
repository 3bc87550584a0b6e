"""Options of engines as rows. Commands build their arguments from them, so this module imports no NumPy."""

from dataclasses import dataclass


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
        ("all", "cpu", "cpu_and_gpu", "cpu_and_ne"), "Core ML bundles on macOS: processors to use", "all"
    ),
    "device": EngineOption(
        ("auto", "cpu", "cuda"),
        "ONNX bundles that compute in float16: device to use",
        "auto, which is cuda if onnxruntime-gpu is installed and loads, else cpu",
    ),
}
