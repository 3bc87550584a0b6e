"""Qwen3-ASR in the layouts of transformers and mlx-audio, beside the published one.

transformers' own classes write folders of the golden weights, and mlx-audio hears with a converted folder.
"""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_audio.convert import convert as convert_by_mlx_audio
from mlx_audio.stt.utils import load_model
from safetensors.torch import load_file, save_file
from support.export.cache import ExportCache
from support.export.conversions import assert_equal, convert, tensors
from support.paths import GOLDEN
from transformers import AutoTokenizer, Qwen3ASRConfig
from transformers.models.qwen3_asr.modeling_qwen3_asr import (
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRForTokenClassification,
)

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.bundle.errors import CheckpointError, UsageError
from voxport.model.inspection import open_family_of
from voxport.model.qwen3_asr.config import Options
from voxport.runtime.families.qwen3_asr.text import Tokenizer, parse_answer
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText

FOLDER = GOLDEN / "qwen3_asr"
TEXTS = json.loads((FOLDER / "text.json").read_text(encoding="utf-8"))
SWAPPED = 624, 374  # tokens of the golden text, and not of the prompt
NAMES = {  # published, and of transformers
    "thinker.audio_tower.proj1": "model.multi_modal_projector.linear_1",
    "thinker.audio_tower.proj2": "model.multi_modal_projector.linear_2",
    "thinker.audio_tower": "model.audio_tower",
    "thinker.model": "model.language_model",
}


def transformers_folder(kind: str, out: Path) -> Path:
    """A golden checkpoint, written by transformers."""
    source = FOLDER / kind
    content, is_aligner = json.loads((source / "config.json").read_text()), kind == "aligner"
    thinker = content["thinker_config"]
    text = dict(thinker["text_config"]) | {"rope_parameters": {"rope_type": "default"}}
    text["rope_parameters"]["rope_theta"] = text.pop("rope_theta")
    for section in (text, thinker["audio_config"]):
        for name in ("model_type", "rope_scaling"):
            section.pop(name, None)
    ends = json.loads((source / "generation_config.json").read_text())["eos_token_id"]
    given = {"audio_config": thinker["audio_config"], "text_config": text, "eos_token_id": ends}
    given["audio_token_id"] = thinker["audio_token_id"]
    if is_aligner:
        times = {"timestamp_token_id": content["timestamp_token_id"], "num_labels": thinker["classify_num"]}
        given |= times | {"tie_word_embeddings": False}
    model_class = Qwen3ASRForTokenClassification if is_aligner else Qwen3ASRForConditionalGeneration
    model = model_class(Qwen3ASRConfig(**given))
    weights = dict[str, torch.Tensor]()
    for name, tensor in load_file(source / "model.safetensors").items():
        _, is_head, rest = name.partition("thinker.lm_head")
        pairs = (pair for pair in NAMES.items() if name.startswith(pair[0]))
        renamed = next((name.replace(old, new) for old, new in pairs), name)
        weights[("score" if is_aligner else "lm_head") + rest if is_head else renamed] = tensor
    model.load_state_dict(weights)
    model.bfloat16()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)
    return out


@pytest.mark.parametrize("kind", ["asr", "aligner"])
def test_a_folder_of_transformers_is_the_published_model(kind: str, tmp_path: Path) -> None:
    folder = transformers_folder(kind, tmp_path / "hf")
    family, published = open_family_of(folder), open_family_of(FOLDER / kind)
    expected = tensors(FOLDER / kind)
    if kind == "asr":
        del expected["thinker.lm_head.weight"]  # tied, so transformers leaves it out
    checkpoint = family.open_checkpoint(folder)
    assert_equal({name: checkpoint.tensor(name) for name in checkpoint.names}, expected)
    config = family.layout.load_config(folder)
    constants, given = (
        cast(Qwen3ASRConstants, each.constants(found, Options()))
        for each, found in ((family, config), (published, published.layout.load_config(FOLDER / kind)))
    )
    assert constants.model_dump() | {"languages": ()} == given.model_dump() | {"languages": ()}
    assert {*constants.languages} >= {*given.languages}
    own = Tokenizer([folder / name for name in family.layout.tokenizer_files(folder)], constants)
    names = published.layout.tokenizer_files(FOLDER / kind)
    tokenizer = Tokenizer([FOLDER / kind / name for name in names], given)
    for text in (run["text"] for run in TEXTS["runs"].values()):
        ids = tokenizer.encode_answer(f"language English<asr_text>{text}")
        assert own.encode_answer(f"language English<asr_text>{text}") == ids
        assert own.decode(ids) == tokenizer.decode(ids)


def test_an_early_name_of_the_head_and_missing_files(tmp_path: Path) -> None:
    folder = transformers_folder("aligner", tmp_path / "hf")
    path = folder / "model.safetensors"
    content = load_file(path)
    content["classifier.weight"] = content.pop("score.weight")
    save_file(content, path, {"format": "pt"})
    assert_equal(tensors_of(folder), tensors(FOLDER / "aligner"))
    with pytest.raises(UsageError, match="exported as it is"):
        open_family_of(folder).layout.published_documents(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is missing"):
        open_family_of(folder).layout.check_tokenizer(folder, None)


def as_a_trainer_saves(folder: Path, head: str) -> Path:
    """The checkpoint with other weights: two tokens have changed places. In shards, with the files of a
    trainer. The tied head is `absent` or `stored`.
    """
    content, table = load_file(folder / "model.safetensors"), "embed_tokens.weight"
    name = next(name for name in content if name.endswith(table))
    first, second = SWAPPED
    content[name][[first, second]] = content[name][[second, first]]
    prefix = "thinker." if "thinker." in name else ""
    content.pop(f"{prefix}lm_head.weight", None)
    if head == "stored":
        content[f"{prefix}lm_head.weight"] = content[name].clone()
    names, index = sorted(content), dict[str, str]()
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({each: content[each] for each in part}, folder / shard, {"format": "pt"})
        index |= dict.fromkeys(part, shard)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"):
        (folder / name).write_bytes(b"not read")
    return folder


@pytest.mark.parametrize(("layout", "head"), [("published", "absent"), ("hf", "stored")])
def test_a_fine_tuned_folder_has_its_own_weights(
    exports: ExportCache, tmp_path: Path, layout: str, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its text is the golden one, in which two tokens have changed places as in the table."""
    if layout == "hf":
        transformers_folder("asr", tmp_path / "tuned")
    else:
        shutil.copytree(FOLDER / "asr", tmp_path / "tuned")
    folder = as_a_trainer_saves(tmp_path / "tuned", head)
    arguments = ["--checkpoint", str(folder), "--target", "onnx", "--quant", "none", "--no-verify"]
    task = open_task(SpeechToText, exports.export(tmp_path / "bundle", *arguments, "--cache-length", "512"))
    with np.load(FOLDER / "asr.npz") as golden:
        samples, tokens = golden["odd_pcm"].astype(np.float32) / 32768, golden["odd_tokens"].tolist()
    first, second = SWAPPED
    others = {first: second, second: first}
    expected = cast(Any, task)._parts.tokenizer.decode([others.get(each, each) for each in tokens])
    found = "".join(delta.text for delta in task.transcribe([samples]))
    assert found == parse_answer(expected)[1] != TEXTS["runs"]["odd"]["text"]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_family_of(folder).open_checkpoint(folder)
    return {name: checkpoint.tensor(name) for name in checkpoint.names}


@pytest.mark.slow
def test_mlx_audio_hears_the_golden_text_with_a_converted_folder(tmp_path: Path) -> None:
    mx.set_default_device(mx.cpu)
    assert convert(FOLDER / "asr", tmp_path / "mlx", "--to", "mlx") == 0
    assert convert(tmp_path / "mlx", tmp_path / "back", "--to", "published") == 0
    assert_equal(tensors(tmp_path / "back"), tensors(FOLDER / "asr"))
    model = load_model(tmp_path / "mlx")
    with np.load(FOLDER / "asr.npz") as golden:
        samples = golden["odd_pcm"].astype(np.float32) / 32768
    assert model.generate(mx.array(samples)).text == TEXTS["runs"]["odd"]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["asr", "aligner"])
def test_folders_of_mlx_audio_convert_to_published_ones(kind: str, tmp_path: Path) -> None:
    """Integers of the decoder become the floats that MLX computes; the encoder is the published one."""
    mx.set_default_device(mx.cpu)
    own = tmp_path / "own"
    source = shutil.copytree(FOLDER / kind, tmp_path / "source")
    options = {"quantize": True, "q_bits": 4, "q_group_size": 32}
    convert_by_mlx_audio(str(source), str(own), model_domain="stt", **options)
    assert convert(own, tmp_path / "back", "--to", "published") == 0
    back, expected = tensors(tmp_path / "back"), tensors(source)
    stored: Any = mx.load(str(own / "model.safetensors"))
    for name, tensor in back.items():
        path = name.removeprefix("thinker.").removesuffix(".weight")
        if f"{path}.scales" in stored:
            words, scales, biases = (stored[f"{path}.{part}"] for part in ("weight", "scales", "biases"))
            floats = mx.dequantize(words, scales, biases, group_size=32, bits=4)
            values = np.array(floats.astype(mx.float32))
            assert np.array_equal(tensor.float().numpy(), values), name
        else:
            assert torch.equal(tensor, expected[name]), name
    assert back.keys() == expected.keys() - ({"thinker.lm_head.weight"} if kind == "asr" else set())
