"""Folders that are no checkpoint of ours are called what they are, with what to do, by every command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import error_line

from voxport.export.__main__ import main as export
from voxport.export.resolve import Source
from voxport.model.__main__ import main as model
from voxport.model.inspection import inspect_checkpoint
from voxport.model.synthetic.checkpoint import random_checkpoint

WRONG = "of one release"  # advice for two files that do not belong together
QWEN, TTS, REALTIME = "qwen3_tts", "voxtral_tts", "voxtral_realtime"
FILES = {QWEN: "model.safetensors", TTS: "consolidated.safetensors", REALTIME: "consolidated.safetensors"}
CHECKED = "give the checkpoint before it was quantised"


def rename(folder: Path, change: Callable[[str], str], name: str) -> None:
    save_file({change(each): value for each, value in load_file(folder / name).items()}, folder / name)


def set_key(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def packed(folder: Path, name: str, *ends: str, dtype: torch.dtype = torch.int32) -> None:
    """One linear is replaced by the tensors of a method."""
    tensors = load_file(folder / name)
    first = min(each for each in tensors if each.endswith(("down_proj.weight", "feed_forward.w2.weight")))
    value = tensors.pop(first)
    for end in ends:
        tensors[first.removesuffix("weight") + end] = value.flatten()[:4].to(dtype)
    save_file(tensors, folder / name)


def float8(folder: Path, scale: str) -> None:
    packed(folder, FILES[TTS], "weight", dtype=torch.float8_e4m3fn)
    save_file(
        load_file(folder / FILES[TTS]) | {f"layers.0.feed_forward.w2.{scale}": torch.ones(1)},
        folder / FILES[TTS],
    )


def method(name: str, *ends: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        set_key(folder / "config.json", quantization_config={"quant_method": name, "bits": 4})
        packed(folder, FILES[QWEN], *ends)

    return damage


def without_weights(*names: str) -> Callable[[Path], None]:
    """The weights are in other files."""

    def damage(folder: Path) -> None:
        (folder / FILES[TTS]).unlink()
        for name in names:
            (folder / name).write_bytes(b"other")

    return damage


def of_mistral(folder: Path) -> None:
    set_key(folder / "params.json", quantization={"qformat_weight": "fp8_e4m3"})
    packed(folder, FILES[REALTIME], "weight", "qscale_weight", dtype=torch.float8_e4m3fn)


def adapter(name: str, **content: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))

    return damage


def inserted_adapter(folder: Path) -> None:
    """As mistral-finetune leaves it beside the base."""
    save_file({"layers.0.attention.wq.lora_A.weight": torch.ones(2, 4)}, folder / "lora.safetensors")


def names_of_transformers(folder: Path) -> None:
    """Without its configuration."""
    rename(
        folder, lambda name: f"language_model.model.{name.replace('attention', 'self_attn')}", FILES[REALTIME]
    )


def codec_alone(folder: Path) -> None:
    codec = folder / "speech_tokenizer"
    for path in folder.iterdir():
        if path != codec:
            path.unlink()
    for path in codec.iterdir():
        path.rename(folder / path.name)


def of_25_hz(folder: Path) -> None:
    shutil.rmtree(folder / "speech_tokenizer")
    set_key(folder / "config.json", tokenizer_type="qwen3_tts_tokenizer_25hz")


def wrapped(name: str, before: str, prefix: str) -> Callable[[Path], None]:
    return lambda folder: rename(folder, lambda each: each.replace(before, prefix + before, 1), name)


CASES: dict[str, tuple[str, Callable[[Path], Any], tuple[str, ...]]] = {
    "GPTQ": (QWEN, method("gptq", "qweight", "qzeros", "g_idx"), ("(GPTQ)", CHECKED)),
    "GPTQ without a configuration": (
        QWEN,
        lambda folder: packed(folder, FILES[QWEN], "qweight", "qzeros", "g_idx"),
        ("(GPTQ)", CHECKED),
    ),
    "AWQ": (QWEN, method("awq", "qweight", "qzeros", "scales"), ("(AWQ)", CHECKED)),
    "AWQ without a configuration": (
        TTS,
        lambda folder: packed(folder, FILES[TTS], "qweight", "qzeros"),
        ("(AWQ)", CHECKED),
    ),
    "bitsandbytes": (QWEN, method("bitsandbytes", "weight", "absmax"), ("(bitsandbytes)", CHECKED)),
    "compressed-tensors": (QWEN, method("compressed-tensors", "weight_packed"), ("(compressed-tensors)",)),
    "HQQ": (QWEN, method("hqq", "W_q"), ("(hqq)", CHECKED)),
    "EETQ": (QWEN, method("eetq", "weight", "weight_scales"), ("(eetq)", CHECKED)),
    "a method of tomorrow": (QWEN, method("sparse9", "blob"), ("(sparse9)", CHECKED)),
    "FP8 of DeepSeek": (
        TTS,
        lambda folder: float8(folder, "weight_scale_inv"),
        ("(FP8 with scales)", CHECKED),
    ),
    "FP8 of vLLM": (TTS, lambda folder: float8(folder, "weight_scale"), ("(FP8 with scales)", CHECKED)),
    "FP8 of Mistral": (REALTIME, of_mistral, ("(FP8 with scales)", CHECKED)),
    "GGUF": (TTS, without_weights("model-q4.gguf"), ("model-q4.gguf is GGUF", "fetch the safetensors")),
    "pickles": (
        TTS,
        without_weights("training_args.bin", "optimizer.pt", "pytorch_model.bin"),
        ("pytorch_model.bin is a pickle", "save safetensors"),
    ),
    "pickles of Mistral": (
        REALTIME,
        without_weights("consolidated.00.pth"),
        ("consolidated.00.pth is a pickle",),
    ),
    "FSDP": (TTS, without_weights("__0_0.distcp"), ("part of a distributed checkpoint", "merge its parts")),
    "Flax": (
        TTS,
        without_weights("flax_model.msgpack"),
        ("not in PyTorch's format", "fetch the safetensors"),
    ),
    "DeepSpeed": (
        TTS,
        without_weights("zero_to_fp32.py"),
        ("of DeepSpeed; run it with --safe_serialization",),
    ),
    "an archive": (TTS, without_weights("model.tar.gz"), ("model.tar.gz is an archive; unpack it",)),
    "a bundle": (TTS, without_weights("codec.onnx"), ("codec.onnx is an exported model", "made from")),
    "LoRA beside its base": (
        TTS,
        adapter("adapter_config.json", peft_type="LORA", r=2, lora_alpha=4),
        ("adapter_model.safetensors: missing; fetch it",),
    ),
    "an adapter with a name": (
        QWEN,
        adapter("french/adapter_config.json", peft_type="LOHA"),
        ("french/adapter_config.json has an adapter of its base (LOHA", "with `merge_and_unload`"),
    ),
    "an adapter of mistral-finetune": (REALTIME, inserted_adapter, ("has an adapter", "`merge_and_unload`")),
    "names of transformers": (
        REALTIME,
        names_of_transformers,
        ("has names of transformers", "expected its config.json beside the file"),
    ),
    "the codec of Qwen3-TTS": (QWEN, codec_alone, ("a speech tokenizer alone", "give the folder of a whole")),
    "25 Hz": (
        QWEN,
        of_25_hz,
        ("with qwen3_tts_tokenizer_25hz, which is not supported", "give a 12 Hz checkpoint"),
    ),
    "an attribute": (QWEN, wrapped(FILES[QWEN], "", "net."), ("'net.' is in names",)),
}


WRAPPERS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "DDP": (TTS, wrapped(FILES[TTS], "", "module."), "module."),
    "DDP of a codec": (QWEN, wrapped("speech_tokenizer/model.safetensors", "", "module."), "module."),
    "torch.compile": (REALTIME, wrapped(FILES[REALTIME], "", "_orig_mod."), "_orig_mod."),
    "torch.compile of a part": (QWEN, wrapped(FILES[QWEN], "model.layers", "_orig_mod."), "_orig_mod."),
    "both": (TTS, wrapped(FILES[TTS], "", "_orig_mod.module."), "_orig_mod., module."),
    "FSDP": (QWEN, wrapped(FILES[QWEN], "mlp", "_fsdp_wrapped_module."), "_fsdp_wrapped_module."),
    "peft after a merge": (REALTIME, wrapped(FILES[REALTIME], "", "base_model.model."), "base_model.model."),
}


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(random_checkpoint(family), tmp_path / family))


def commands(folder: Path) -> dict[str, Callable[[], int]]:
    out = folder.with_name("out")
    return {
        "inspect": lambda: model(["inspect", str(folder)]),
        "export": lambda: export(["export", "--target", "onnx", "--checkpoint", str(folder), "--dry-run"]),
        "convert": lambda: export(["convert", str(folder), str(out), "--to", "published"]),
    }


@pytest.mark.parametrize(("family", "damage", "said"), CASES.values(), ids=CASES)
def test_a_foreign_format_is_named_with_what_to_do(
    copies: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    family: str,
    damage: Callable[[Path], object],
    said: tuple[str, ...],
) -> None:
    folder = copies(family)
    damage(folder)
    for name, command in commands(folder).items():
        assert command() == 5, name
        line = error_line(capsys)
        assert all(text in line for text in said), f"{name}: {line}"
        assert WRONG not in line and "more)" not in line, f"{name}: {line}"
        assert not folder.with_name("out").exists()


@pytest.mark.parametrize(("family", "wrap", "said"), WRAPPERS.values(), ids=WRAPPERS)
def test_names_that_training_added_are_left_out_and_named(
    copies: Callable[[str], Path], family: str, wrap: Callable[[Path], object], said: str
) -> None:
    folder = copies(family)
    wrap(folder)
    found = Source(folder).checkpoint
    expected = Source(random_checkpoint(family)).checkpoint
    assert found.names == expected.names
    assert all(torch.equal(found.tensor(name), expected.tensor(name)) for name in sorted(found.names)[::9])
    (note,) = [note for note in inspect_checkpoint(folder)["notes"] if "wrapper" in note]
    assert note.startswith(f"{said} in names of tensors: left out")


def test_an_adapter_alone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_key(tmp_path / "adapter_config.json", peft_type="LORA", r=16, base_model_name_or_path="owner/base")
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    for name, command in commands(tmp_path).items():
        assert command() == 5, name
        assert "adapter of owner/base (LoRA of rank 16); give the folder of the base" in error_line(capsys)


def test_weights_in_floats_are_loadable_whatever_an_old_configuration_says(
    copies: Callable[[str], Path],
) -> None:
    """A base that was loaded with bitsandbytes for training keeps the section when it is saved."""
    folder = copies(QWEN)
    set_key(folder / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    assert model(["inspect", str(folder)]) == 0


def test_the_file_is_named_that_a_published_folder_with_two_layouts_lacks(
    copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its other configuration does not make it a checkpoint of transformers."""
    folder = copies(REALTIME)
    set_key(folder / "config.json", model_type=REALTIME, audio_config={"a": 1}, text_config={"a": 1})
    content = (folder / FILES[REALTIME]).read_bytes()
    (folder / FILES[REALTIME]).write_bytes(content[: len(content) // 2])
    assert model(["inspect", str(folder)]) == 5
    assert "not a complete safetensors file" in error_line(capsys)


@pytest.mark.parametrize("name", ["nowhere", "here/nowhere", "a/b/c"])
def test_a_path_that_does_not_exist_is_no_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model(["inspect", name]) == 2
    hint = ", or hf://here/nowhere for a repository of the hub" if name == "here/nowhere" else ""
    assert error_line(capsys).endswith(f"no such folder; give the folder of a published checkpoint{hint}")


def test_a_file_is_answered_with_its_folder(
    copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copies(TTS)
    for name in (FILES[TTS], "params.json"):
        for command in commands(folder / name).values():
            assert command() == 2
            assert f"{folder / name}: a file; give its folder {folder}" in error_line(capsys)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.gguf", "is GGUF, which is not read; fetch the safetensors"),
        ("pytorch_model.bin", "is a pickle, which is not read; load it in PyTorch"),
        ("codec.onnx", "is an exported model; give the checkpoint"),
    ],
)
def test_a_file_of_another_format_is_called_what_it_is(
    tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"other")
    for command in commands(tmp_path / name).values():
        assert command() == 2
        assert f"{tmp_path / name}: {said}" in error_line(capsys)


def test_a_parent_of_several_checkpoints_names_them(
    copies: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = copies(TTS), copies(QWEN)
    for command in commands(tmp_path).values():
        assert command() == 2
        assert f"holds 2 checkpoints; give the folder {second} or {first}" in error_line(capsys)
    shutil.rmtree(second)
    assert model(["inspect", str(tmp_path)]) == 2
    assert f"holds a checkpoint; give the folder {first}" in error_line(capsys)
