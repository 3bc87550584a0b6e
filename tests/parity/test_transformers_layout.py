"""Folders that transformers writes are read as they are, and it reads those that `convert` writes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import error_line
from support.export.conversions import assert_equal, convert, tensors
from support.model.transformers_model import Sizes, assert_equals_transformers, build, published, sound
from transformers import AutoProcessor, VoxtralRealtimeConfig, VoxtralRealtimeForConditionalGeneration

from voxport.bundle.errors import CheckpointError, ConfigError, UsageError
from voxport.export.conversion import convert as converting
from voxport.export.resolve import Source
from voxport.model.__main__ import main as command
from voxport.model.inspection import inspect_checkpoint
from voxport.model.synthetic.checkpoint import random_checkpoint

WEIGHTS = "model.safetensors"
NORM = "mm_streams_embeddings.embedding_module.whisper_encoder.transformer.norm.weight"


@pytest.fixture(scope="module")
def model() -> Any:
    return build(Sizes())


@pytest.fixture
def saved(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "tuned")
    return tmp_path / "tuned"


def tensors_of(folder: Path, *weights: str) -> dict[str, torch.Tensor]:
    checkpoint = Source(folder, weights).checkpoint
    return {name: checkpoint.tensor(name) for name in checkpoint.names}


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def state(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that transformers reads, none missing or unknown."""
    read: Any = VoxtralRealtimeForConditionalGeneration.from_pretrained
    model, report = read(folder, output_loading_info=True)
    assert not any(report.values()), report
    found: dict[str, torch.Tensor] = model.state_dict()
    return found


@pytest.mark.parametrize("shard_size", ["1GB", "100KB"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_fine_tune_runs_as_in_transformers(tmp_path: Path, shard_size: str, dtype: str) -> None:
    build(Sizes()).to(getattr(torch, dtype)).save_pretrained(tmp_path, max_shard_size=shard_size)
    assert inspect_checkpoint(tmp_path)["dtypes"] == [{"float32": "F32", "float16": "F16"}.get(dtype, "BF16")]
    model: Any = VoxtralRealtimeForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    assert_equals_transformers(model, tmp_path, Sizes())


def test_names_of_a_state_dict_and_a_copy_of_the_table_are_read(model: Any, saved: Path) -> None:
    expected = tensors_of(saved)
    content = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    save_file(content, saved / WEIGHTS)
    assert "lm_head.weight" in content
    assert_equal(tensors_of(saved), expected)
    content["lm_head.weight"][3, 4] += 1
    save_file(content, saved / WEIGHTS)
    with pytest.raises(
        CheckpointError, match=r"embed_tokens.*lm_head\.weight, with other values; expected it"
    ):
        Source(saved)


@pytest.mark.parametrize("shard_size", [5e9, 1e5])
def test_published_to_transformers_and_back(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_size: float
) -> None:
    """To the bit, and transformers reads the folder between as the model that both came from."""
    monkeypatch.setattr(converting, "MAX_SHARD", shard_size)
    source = published(model, Sizes(), tmp_path / "published")
    assert convert(source, tmp_path / "out", "--to", "transformers") == 0
    found = state(tmp_path / "out")
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    assert (tmp_path / "out" / WEIGHTS).exists() == (shard_size == 5e9)
    assert convert(tmp_path / "out", tmp_path / "back", "--to", "published") == 0
    assert_equal(tensors(tmp_path / "back"), tensors(source))
    assert Source(tmp_path / "back").config == Source(tmp_path / "out").config == Source(source).config
    assert not (tmp_path / "back" / "config.json").exists()
    tokens = [assert_equals_transformers(model, tmp_path / name, Sizes()) for name in ("out", "back")]
    assert tokens[0] == tokens[1]


def test_transformers_to_another_precision_to_mlx_and_back(saved: Path, tmp_path: Path) -> None:
    expected = {name: value.bfloat16() for name, value in tensors_of(saved).items()}
    edit(saved / "config.json", lambda content: content.update(own_key=7))
    assert convert(saved, tmp_path / "half", "--to", "transformers", "--dtype", "bf16") == 0
    content = json.loads((tmp_path / "half" / "config.json").read_text())
    assert (content["dtype"], content["own_key"]) == ("bfloat16", 7)
    assert state(tmp_path / "half")["lm_head.weight"].dtype == torch.bfloat16
    assert convert(tmp_path / "half", tmp_path / "mlx", "--to", "mlx") == 0
    assert convert(tmp_path / "mlx", tmp_path / "back", "--to", "transformers") == 0
    for name in ("half", "back"):
        assert_equal(tensors_of(tmp_path / name), expected)


def test_weights_of_mistral_with_the_configuration_of_transformers(model: Any, tmp_path: Path) -> None:
    folder = published(model, Sizes(), tmp_path / "checkpoint")
    expected = tensors_of(folder)
    (folder / "params.json").unlink()
    model.config.save_pretrained(folder)
    assert_equal(tensors_of(folder), expected)
    assert list(Source(folder).files) == ["config.json", "consolidated.safetensors"]


@pytest.mark.parametrize("read", ["consolidated.safetensors", WEIGHTS])
def test_a_folder_with_both_layouts_is_compared(model: Any, tmp_path: Path, read: str) -> None:
    """As official repositories have them. A change of one row of a query is found as well."""
    folder = published(model, Sizes(), tmp_path / "checkpoint")
    model.save_pretrained(folder)
    if read == WEIGHTS:
        (folder / "params.json").unlink()
    found = inspect_checkpoint(folder)
    assert found["loadable"] and any(
        note.startswith(f"{read}: read; ") and "has no other values" in note for note in found["notes"]
    )
    content = load_file(folder / WEIGHTS)
    for name in ("language_model.model.layers.1.self_attn.q_proj.weight", "audio_tower.norm.weight"):
        content[name][-1] += 0.125
        save_file(content, folder / WEIGHTS)
        with pytest.raises(UsageError, match=f"{read}.*differ, first in "):
            inspect_checkpoint(folder)
        for weights in ("consolidated.safetensors", WEIGHTS):
            assert inspect_checkpoint(folder, [weights])["loadable"]
        content[name][-1] -= 0.125
    content["audio_tower.norm.weight"][-1] += 0.125
    save_file(content, folder / WEIGHTS)
    norms = [tensors_of(folder, name)[NORM] for name in (WEIGHTS, "consolidated.safetensors")]
    assert (norms[0] - norms[1]).tolist() == [0] * (len(norms[0]) - 1) + [0.125]


def test_weights_beside_the_published_configuration(
    model: Any,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A fine-tune in a copy of the base: params.json is there, and the published weights are not."""
    folder = published(model, Sizes(), tmp_path / "checkpoint")
    expected = tensors_of(folder)
    (folder / "consolidated.safetensors").unlink()
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    assert_equal(tensors_of(folder), expected)
    assert list(Source(folder).files) == ["config.json", WEIGHTS]
    monkeypatch.setattr("voxport.cli.commands.inspect.find_spec", lambda name: None)
    assert command(["inspect", str(folder)]) == 0, "also without torch"
    assert capsys.readouterr().out.startswith("whole; its tensors are not compared")


def test_a_processor_of_transformers_transcribes_what_convert_writes(tmp_path: Path) -> None:
    """The tokens of `generate` on its own features are ours, until it stops."""
    sizes = Sizes(vocab=1536, samples=16000)
    source = published(build(sizes), sizes, tmp_path / "published")
    shutil.copyfile(random_checkpoint("voxtral_realtime") / "tekken.json", source / "tekken.json")
    assert convert(source, tmp_path / "out", "--to", "transformers") == 0
    read: Any = AutoProcessor.from_pretrained
    processor = read(tmp_path / "out")
    model: Any = VoxtralRealtimeForConditionalGeneration.from_pretrained(tmp_path / "out")
    inputs = processor(sound(sizes.samples), return_tensors="pt", sampling_rate=16000)
    found = model.generate(**inputs, do_sample=False)[0, inputs["input_ids"].shape[1] :].tolist()
    expected = assert_equals_transformers(model, tmp_path / "out", sizes)
    assert len(found) > 10 and found == expected[: len(found)]
    processor.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved")
    assert_equal(tensors_of(tmp_path / "saved"), tensors_of(source))
    assert Source(tmp_path / "saved").tokenizer_files == ("tekken.json",)


def without_thetas(content: dict[str, Any]) -> None:
    for name in ("audio_config", "text_config"):
        del content[name]["rope_parameters"]


def test_keys_that_the_configuration_lacks_have_the_values_of_transformers(saved: Path) -> None:
    edit(saved / "config.json", without_thetas)
    edit(saved / "config.json", lambda content: content["text_config"].pop("sliding_window"))
    edit(saved / "config.json", lambda content: content["audio_config"].pop("rms_norm_eps"))
    found: Any = Source(saved).config
    expected: Any = VoxtralRealtimeConfig.from_pretrained(saved)
    for ours, theirs in ((found, expected.text_config), (found.encoder, expected.audio_config)):
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        assert (ours.sliding_window, ours.norm_eps) == (theirs.sliding_window, theirs.rms_norm_eps)
    edit(saved / "config.json", lambda content: content["audio_config"].update(rope_theta=5e5))
    found = Source(saved).config
    assert found.encoder.rope_theta == 5e5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content["audio_config"].update(head_dim=7.5), "audio_config.head_dim: "),
        (
            lambda content: content["text_config"].update(num_hidden_layers=0),
            "text_config.num_hidden_layers: ",
        ),
        (lambda content: content.update(projector_hidden_act="relu"), "'relu', expected 'gelu'"),
        (lambda content: content.update(text_config=[1]), "text_config: [1], expected an object"),
        (
            lambda content: content["text_config"]["rope_parameters"].update(rope_type="yarn"),
            "text_config.rope_parameters.rope_type: 'yarn', expected 'default'",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_named_with_its_own_key(
    saved: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    edit(saved / "config.json", change)
    (problem,) = inspect_checkpoint(saved)["problems"]
    assert problem.startswith(str(saved / "config.json")) and said in problem
    with pytest.raises(ConfigError):
        Source(saved)


def test_a_tensor_of_another_shape_is_one_problem(saved: Path) -> None:
    content = load_file(saved / WEIGHTS)
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    save_file(content | {name: content[name][:-1].clone()}, saved / WEIGHTS)
    (problem,) = inspect_checkpoint(saved)["problems"]
    assert "shape [63, 48], expected [64, 48]" in problem


@pytest.mark.parametrize(
    ("family", "said"),
    [("voxtral_realtime", "ada_rms_norm_t_cond_dim is 8"), ("voxtral_tts", "no layout for Voxtral-TTS")],
)
def test_a_model_that_transformers_lacks_is_not_written(
    tmp_path: Path, family: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(random_checkpoint(family), tmp_path / "out", "--to", "transformers") == 2
    assert said in error_line(capsys)
    assert not (tmp_path / "out").exists()
