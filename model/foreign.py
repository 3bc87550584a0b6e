"""Checkpoints in formats that voxport does not read: what they are, and what to do. Imports no torch."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from voxport.bundle.errors import CheckpointError, CheckpointNotFound, IntegrityError
from voxport.model.download import partial_downloads, read_header, read_object

FP8 = "FP8 with scales"
METHODS = {"gptq": "GPTQ", "awq": "AWQ", "fp8": FP8}  # by `quant_method`; others are called as there
METHODS_OF_TENSORS = {  # by the last part of a name; the first that a checkpoint has decides
    "g_idx": "GPTQ",
    "qzeros": "AWQ",
    "absmax": "bitsandbytes",
    "SCB": "bitsandbytes",
    "W_q": "HQQ",
    "weight_scale_2": "NVFP4",
    "weight_packed": "compressed-tensors",
    "weight_scale": FP8,
    "weight_scale_inv": FP8,
}
FILES = (  # in a folder without safetensors; by the end of a name
    (
        ("zero_to_fp32.py",),
        "of DeepSpeed; run it with --safe_serialization, and give the folder that it writes",
    ),
    ((".gguf", ".ggml"), "GGUF, which is not read; fetch the safetensors files of the model"),
    (
        (".bin", ".pt", ".pth", ".ckpt"),
        "a pickle, which is not read; load it in PyTorch, and save safetensors",
    ),
    ((".distcp",), "part of a distributed checkpoint; merge its parts into safetensors first"),
    ((".h5", ".msgpack", ".npz"), "not in PyTorch's format; fetch the safetensors files of the model"),
    ((".zip", ".tar", ".gz", ".nemo"), "an archive; unpack it, and give the folder"),
    (
        (".onnx", ".pte", ".mlpackage", ".mlmodelc", ".tflite", ".engine", ".aimodel"),
        "an exported model; give the checkpoint that it was made from",
    ),
)
TOKENIZER_25_HZ = "qwen3_tts_tokenizer_25hz"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # files of peft
MERGE_FIRST = "merge it into its base with `merge_and_unload`, save that model, and give its folder"
NOT_WEIGHTS = ("optimizer", "scheduler", "rng_state", "training_args", "scaler")  # files of a trainer


@contextmanager
def foreign_format_named(folder: Path) -> Iterator[None]:
    """Raises CheckpointError that names the format of a folder, in place of the faults that this explains."""
    try:
        yield
    except (IntegrityError, CheckpointNotFound):
        is_folder = folder.is_dir() and not partial_downloads(folder)
        reasons = (adapter_named, _quantised, _other_layout, _other_file) if is_folder else ()
        if reason := next(filter(None, (find(folder) for find in reasons)), None):
            raise CheckpointError(f"{folder}: {reason}") from None
        raise


def adapter_named(folder: Path, places: Collection[str] = ("",)) -> str | None:
    """The adapter in `folder`, or below in `places` like `*/`, and what to do; None beside other weights."""
    names = (f"{start}adapter_{rest}" for start in places for rest in ("config.json", "model.*"))
    paths = [path for name in names for path in sorted(folder.glob(name))]
    if {*paths} & {*folder.glob("*")} and {*folder.glob("*.safetensors")} - {folder / ADAPTER_WEIGHTS}:
        return None
    if not paths and not any(".lora_" in name for name in _dtypes(folder)):
        return None
    name = paths[0].relative_to(folder) if paths else "a file of weights"
    content = read_object(paths[0].with_name("adapter_config.json")) if paths else {}
    kind, base = content.get("peft_type"), content.get("base_model_name_or_path") or "its base"
    if kind == "LORA" and paths[0].with_name(ADAPTER_WEIGHTS).is_file():
        found, advice = (
            f"LoRA of rank {content.get('r')}",
            "give the folder of the base, and this one with --adapter",
        )
    else:
        found, advice = f"{kind or 'LoRA'} of peft, which is not merged", MERGE_FIRST
    return f"{name} has an adapter of {base} ({found}); {advice}"


def _quantised(folder: Path) -> str | None:
    """By a configuration, or by names and dtypes of tensors."""
    configs = [read_object(folder / name) for name in ("config.json", "params.json")]
    methods = [_method(section) for config in configs for section in (config, *config.values())]
    dtypes = _dtypes(folder)
    ends = {name.rpartition(".")[2] for name in dtypes}
    methods += [method for end, method in METHODS_OF_TENSORS.items() if end in ends]
    methods += [FP8 for dtype in dtypes.values() if dtype.startswith("F8_")]
    method, advice = next(filter(None, methods), None), "give the checkpoint before it was quantised"
    return f"its weights are quantised ({method}), which is not read; {advice}" if method else None


def _method(section: Any) -> str | None:
    for key in ("quantization_config", "quantization"):
        found = section.get(key) if isinstance(section, dict) else None
        if not isinstance(found, dict):
            continue
        if name := found.get("quant_method") or ("qformat_weight" in found and "fp8"):  # Mistral's key
            return METHODS.get(str(name), str(name))
    return None


def _other_layout(folder: Path) -> str | None:
    """A part of a checkpoint, or another codec."""
    content, codec = (read_object(folder / name) for name in ("config.json", "speech_tokenizer/config.json"))
    if TOKENIZER_25_HZ in (content.get("tokenizer_type"), codec.get("model_type")):
        return f"a model with {TOKENIZER_25_HZ}, which is not supported; give a 12 Hz checkpoint"
    kind = str(content.get("model_type"))
    if kind.startswith("qwen3_tts_tokenizer"):
        return f"a speech tokenizer alone ({kind}); give the folder of a whole Qwen3-TTS checkpoint"
    return None


def _other_file(folder: Path) -> str | None:
    if any(folder.glob("*.safetensors")):
        return None
    names = [path.name for path in sorted(folder.iterdir()) if not path.name.startswith(NOT_WEIGHTS)]
    found = ((name, text) for ends, text in FILES for name in names if name.endswith(ends))
    return next((f"{name} is {text}" for name, text in found), None)


def format_of(path: Path) -> str | None:
    """What a file that is no checkpoint is, by its name, and what to do."""
    return next((f"is {text}" for ends, text in FILES if path.name.endswith(ends)), None)


def _dtypes(folder: Path) -> dict[str, str]:
    """Dtypes of all tensors of a checkpoint by name."""
    paths = (path for start in ("", "speech_tokenizer/") for path in folder.glob(f"{start}*.safetensors"))
    return {name: str(entry.get("dtype")) for path in paths for name, entry in read_header(path).items()}
