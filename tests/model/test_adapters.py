"""LoRA adapters beside a base, in a folder of their own, and those that are refused.

`tests/parity/test_golden_peft.py` compares the sums with those of peft.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import error_line

from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.manifest import SCHEMA_VERSION, ExportRequest, Manifest, file_entry
from voxport.cli.preflight import open_source_of
from voxport.export.__main__ import main as export
from voxport.export.card import bundle_readme
from voxport.export.job import bundle_name, make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.model.__main__ import main as model
from voxport.model.inspection import inspect_checkpoint
from voxport.model.synthetic.checkpoint import random_checkpoint

QWEN, TTS = "qwen3_tts", "voxtral_tts"
FILES = {QWEN: "model.safetensors", TTS: "consolidated.safetensors"}
LAYERS = {QWEN: "talker.model.layers.1.self_attn.q_proj", TTS: "layers.1.attention.wq"}
NORMS = {QWEN: "talker.model.norm.weight", TTS: "norm.weight"}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "base_model_name_or_path": "owner/base"}
ADAPTER = "adapter_model.safetensors"


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(random_checkpoint(family), tmp_path / family))


def write_adapter(
    folder: Path,
    shape: tuple[int, ...],
    path: str,
    tensors: dict[str, torch.Tensor] | None = None,
    **more: Any,
) -> Path:
    """An adapter of a layer with a weight of `shape`, and further tensors."""
    generator, rank = torch.Generator().manual_seed(5), 2
    pair = {
        f"base_model.model.{path}.lora_A.weight": torch.randn(rank, *shape[1:], generator=generator),
        f"base_model.model.{path}.lora_B.weight": torch.randn(shape[0], rank, generator=generator),
    }
    folder.mkdir(exist_ok=True)
    save_file(pair | (tensors or {}), folder / ADAPTER)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | more))
    return folder


def weight(folder: Path, family: str) -> torch.Tensor:
    return load_file(folder / FILES[family])[f"{LAYERS[family]}.weight"]


def adapted(base: Path, family: str, folder: Path, **more: Any) -> Path:
    return write_adapter(folder, tuple(weight(base, family).shape), LAYERS[family], **more)


def expected(base: Path, family: str, adapter: Path) -> torch.Tensor:
    before, tensors = weight(base, family), load_file(adapter / ADAPTER)
    a, b = (tensors[f"base_model.model.{LAYERS[family]}.lora_{part}.weight"] for part in "AB")
    return (before.float() + 1.5 * (b @ a)).to(before.dtype)


@pytest.mark.parametrize("family", [QWEN, TTS])
@pytest.mark.parametrize("is_beside", [True, False])
@pytest.mark.parametrize("to", ["published", "mlx"])
def test_an_adapter_is_merged(
    copies: Callable[[str], Path], tmp_path: Path, family: str, is_beside: bool, to: str
) -> None:
    base, out, back = copies(family), tmp_path / "out", tmp_path / "back"
    norm = load_file(base / FILES[family])[NORMS[family]] + 1
    saved = {f"base_model.model.{NORMS[family]}": norm}
    adapter = adapted(base, family, base if is_beside else tmp_path / "adapter", tensors=saved)
    given = [] if is_beside else ["--adapter", str(adapter)]
    found = expected(base, family, adapter)
    assert not torch.equal(found, weight(base, family))
    assert export(["convert", str(base), str(out), "--to", to, *given]) == 0
    if to == "mlx":
        assert export(["convert", str(out), str(back), "--to", "published"]) == 0
    merged = back if to == "mlx" else out
    assert torch.equal(weight(merged, family), found)
    assert not list(merged.glob("adapter*")), "the merged model has none"
    tensors = load_file(merged / FILES[family])
    for name, value in load_file(base / FILES[family]).items():
        is_changed = name in (f"{LAYERS[family]}.weight", NORMS[family])
        assert torch.equal(tensors[name], value) != is_changed, name
    assert torch.equal(tensors[NORMS[family]], norm)
    name = f"{LAYERS[family]}.weight"
    assert torch.equal(Source(base, (), None if is_beside else adapter).checkpoint.tensor(name), found)


@pytest.mark.parametrize("weights", [(), (FILES[QWEN],)])
def test_an_adapter_beside_its_base_is_merged_with_a_warning(
    copies: Callable[[str], Path], caplog: pytest.LogCaptureFixture, weights: tuple[str, ...]
) -> None:
    base, name = copies(QWEN), f"{LAYERS[QWEN]}.weight"
    found = expected(base, QWEN, adapted(base, QWEN, base))
    for is_there, values in ((True, found), (False, weight(base, QWEN))):
        caplog.clear()
        assert torch.equal(Source(base, weights).checkpoint.tensor(name), values)
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        advice = "the adapter in this folder is merged; move adapter_config.json elsewhere to leave it out"
        assert warnings == ([f"{base}: {advice}"] if is_there else [])
        (base / "adapter_config.json").unlink(missing_ok=True)


def test_the_manifest_the_card_and_the_name_have_the_adapter(
    copies: Callable[[str], Path], tmp_path: Path
) -> None:
    base = copies(QWEN)
    adapter, other = (adapted(base, QWEN, tmp_path / name) for name in ("adapter", "other"))
    save_file({name: value + 1 for name, value in load_file(other / ADAPTER).items()}, other / ADAPTER)
    target, names = open_target("onnx"), set()
    for folder in (None, adapter, other):
        resolved = resolve(Source(base, (), folder), ExportRequest())
        job = make_job(resolved, target, "tiny")
        manifest = Manifest(
            schema_version=SCHEMA_VERSION, job=job, files={}, tokenizer=(), voices={}, weight_errors={}
        )
        digest = file_entry(folder / ADAPTER).sha256 if folder else None
        entry = job.source.files.get(f"adapter/{ADAPTER}")
        assert (entry.sha256 if entry else None) == digest
        assert (
            f"adapter is merged into them (sha256 {digest})" in bundle_readme(manifest, "", target)
        ) == bool(folder)
        names.add(bundle_name(resolved, "tiny", target))
    assert len(names) == 3


def test_commands_on_a_bundle_read_the_adapter_that_it_was_made_with(
    copies: Callable[[str], Path], tmp_path: Path
) -> None:
    base = copies(QWEN)
    adapter, other = (adapted(base, QWEN, tmp_path / name) for name in ("adapter", "other"))
    save_file({name: value + 1 for name, value in load_file(other / ADAPTER).items()}, other / ADAPTER)
    job = make_job(resolve(Source(base, (), adapter), ExportRequest()), open_target("onnx"), "tiny")

    def opened(adapter: Path | None) -> Source:
        return open_source_of(job, argparse.Namespace(checkpoint=base, weights=(), adapter=adapter))

    assert opened(adapter).files == job.source.files
    with pytest.raises(UsageError, match=r"adapter/adapter_model.safetensors is not the file"):
        opened(other)
    with pytest.raises(UsageError, match=r"^adapter .*: has no adapter_config.json of peft"):
        opened(None)
    for path in adapter.iterdir():
        shutil.copy(path, base)
    assert opened(None).files == job.source.files, "it lies beside its base"


def test_inspect_names_an_adapter(copies: Callable[[str], Path], tmp_path: Path) -> None:
    base = copies(QWEN)
    adapter = adapted(base, QWEN, tmp_path / "adapter")
    notes = inspect_checkpoint(base, (), adapter)["notes"]
    assert f"adapter {adapter}: LoRA of rank 2 for owner/base, merged into 1 tensors" in notes


PATH, SHAPE = LAYERS[QWEN], (128, 96)
NAME = f"base_model.model.{PATH}"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "LOHA"}, "peft_type LOHA: not merged; merge it into its base with"),
    "another start": ({"init_lora_weights": "pissa"}, "init_lora_weights pissa, which changes the base"),
    "quantised inputs": ({"use_qalora": True}, "use_qalora: not merged"),
    "tokens": ({"trainable_token_indices": [1]}, "trainable_token_indices: not merged"),
    "another rank": ({"r": 4}, r"q_proj.lora_A.weight: rank 2, 4 expected from adapter_config.json"),
    "no scale": ({"lora_alpha": None}, "lora_alpha: "),
    "another layer": (
        {"path": "talker.model.layers.9.self_attn.q_proj"},
        "layers.9.*: 1 of 1 tensors are not in the base; give",
    ),
    "another width": (
        {"shape": (64, 96)},
        r"made for \[64, 96\], but it is \[128, 96\] in .*model.safetensors",
    ),
    "an unknown kind": (
        {"tensors": {f"{NAME}.lora_C": torch.ones(2)}},
        "lora_C: a kind of tensor that is not",
    ),
    "a half": (
        {"tensors": {"base_model.model.a.lora_A.weight": torch.ones(2)}},
        "a: has one of A and B, expected",
    ),
    "no numbers": ({"tensors": {f"{NAME}.weight": torch.full((128, 96), torch.nan)}}, "not finite"),
    "two parts": (
        {"path": "layers.0.self_attn.k_proj", "shape": (64, 64)},
        "may be speech_tokenizer.* and .*; save the adapter of the whole model",
    ),
}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_an_adapter_that_cannot_be_merged_is_refused(
    copies: Callable[[str], Path], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    base = copies(QWEN)
    write_adapter(tmp_path / "adapter", **({"path": PATH, "shape": SHAPE} | change))
    with pytest.raises(VoxportError, match=says) as raised:
        Source(base, (), tmp_path / "adapter").checkpoint.tensor(f"{PATH}.weight")
    assert "\n" not in str(raised.value)


def test_an_adapter_of_weights_for_mlx_is_refused(
    copies: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, mlx = copies(TTS), tmp_path / "mlx"
    assert export(["convert", str(base), str(mlx), "--to", "mlx"]) == 0
    adapter = adapted(base, TTS, tmp_path / "adapter")
    for command, *more in ("inspect",), ("convert", str(tmp_path / "out"), "--to", "published"):
        capsys.readouterr()
        main = model if command == "inspect" else export
        assert main([command, str(mlx), *more, "--adapter", str(adapter)]) == 5
        assert "--to published; then merge the adapter" in error_line(capsys)


def test_a_missing_adapter_is_named(
    copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    base = copies(QWEN)
    assert export(["--target", "onnx", "--checkpoint", str(base), "--dry-run", "--adapter", str(base)]) == 2
    assert f"--adapter {base}: has no adapter_config.json of peft" in error_line(capsys)
