"""Synthetic Qwen3-TTS checkpoints have the files, keys, dtypes and tokens of the published ones."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.paths import ROOT
from transformers import AutoTokenizer

from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.model.families import open_family
from voxport.model.qwen3_tts.config import SPEECH_TOKENIZER
from voxport.model.qwen3_tts.layouts import WEIGHTS
from voxport.model.qwen3_tts.sizes import size_names
from voxport.model.synthetic import checkpoint as synthetic
from voxport.model.synthetic.checkpoint import random_checkpoint, write_checkpoint

GOLDEN = ROOT / "tests" / "parity" / "golden" / "qwen3_tts"  # written by the published package
CODEC_WEIGHTS = f"{SPEECH_TOKENIZER}/{WEIGHTS}"
TABLES = ("codec_language_id", "spk_id", "spk_is_dialect", "added_tokens_decoder")  # keys are names or ids
VARIANTS = {"tiny": "base", "tiny-custom-voice": "custom_voice", "tiny-voice-design": "voice_design"}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("qwen") / str(request.param)
    write_checkpoint(out, str(request.param), key="qwen3_tts")
    return out


def keys(content: dict[str, Any], path: str = "") -> set[str]:
    found = {f"{path}{key}" for key in content}
    for key, value in content.items():
        if isinstance(value, dict) and key not in TABLES:
            found |= keys(value, f"{path}{key}.")
    return found


def test_files_and_keys_are_those_of_the_published_package(folder: Path) -> None:
    golden = GOLDEN / VARIANTS[folder.name]
    for path in golden.rglob("*.json"):
        ours = json.loads((folder / path.relative_to(golden)).read_text())
        theirs = json.loads(path.read_text())
        if path.name != "vocab.json":
            assert keys(ours) == keys(theirs), path.relative_to(golden)


@pytest.mark.parametrize(
    ("size", "tensors", "language_bytes"),
    [
        ("0.6b", 478, 1_829_286_016),
        ("0.6b-custom-voice", 402, 1_811_577_344),
        ("1.7b", 480, 3_857_354_880),
        ("1.7b-custom-voice", 404, 3_833_352_704),
        ("1.7b-voice-design", 404, 3_833_352_704),
    ],
)
def test_tensors_of_the_published_sizes(size: str, tensors: int, language_bytes: int) -> None:
    """All sizes have one codec: 271 tensors of its decoder and 225 of its encoder, 682,229,764 bytes."""
    family = open_family("qwen3_tts")
    shapes = synthetic.expected_shapes(family, size)
    codec = {name: shape for name, shape in shapes.items() if name.startswith(f"{SPEECH_TOKENIZER}.")}
    others = {name: shape for name, shape in shapes.items() if name not in codec}
    halves = [sum(f".{half}." in name[:26] for name in codec) for half in ("decoder", "encoder")]
    assert (len(others), halves) == (tensors, [271, 225])
    assert synthetic.bytes_of(others) == language_bytes
    assert synthetic.bytes_of(codec, "F32") == 682_229_764


def test_the_language_model_is_bfloat16_and_the_codec_float32(folder: Path) -> None:
    for name, dtype in ((WEIGHTS, "BF16"), (CODEC_WEIGHTS, "F32")):
        with safe_open(folder / name, framework="pt") as file:
            assert {file.get_slice(key).get_dtype() for key in file.keys()} == {dtype}  # noqa: SIM118
            assert file.metadata()["format"] == "pt"  # else transformers refuses the file
    codec = load_file(folder / CODEC_WEIGHTS)
    assert all(torch.equal(value, value.bfloat16().float()) for value in codec.values())
    assert all(value.tolist() == [1.0] for name, value in codec.items() if name.endswith("initialized"))


def test_words_of_the_templates_are_tokens(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    ours = QwenTokenizer([folder / "vocab.json", folder / "merges.txt"])
    theirs = AutoTokenizer.from_pretrained(folder)
    start, end, assistant = (config[f"{name}_token_id"] for name in ("im_start", "im_end", "assistant"))
    template = "<|im_start|>assistant\nThe time.<|im_end|>\n<|im_start|>user\n"
    assert theirs(template).input_ids == [
        *(start, assistant, 198, *ours.encode("The time."), end, 198, start, 872, 198)
    ]
    for text in ("Hello there, you good people.", "été 🙂 2026", "assistants use it"):
        assert theirs(text).input_ids == ours.encode(text)
    assert theirs.convert_tokens_to_ids(["<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]) == [
        config[f"tts_{name}_token_id"] for name in ("pad", "bos", "eos")
    ]


@pytest.mark.parametrize("size", size_names())
def test_the_vocabulary_has_every_id_below_the_added_tokens_once(size: str) -> None:
    family = open_family("qwen3_tts")
    documents = family.synthetic.documents(size)
    added = documents["tokenizer_config.json"]["added_tokens_decoder"]
    vocabulary, config = documents["vocab.json"], documents["config.json"]
    assert sorted(vocabulary.values()) == list(range(int(min(added, key=int))))
    assert vocabulary["assistant"] == config["assistant_token_id"]
    assert (vocabulary["user"], vocabulary["Ċ"]) == (872, 198) and "Ġpeople" in vocabulary
    assert max(map(int, added)) < config["talker_config"]["text_vocab_size"]


def test_the_bytes_of_the_embedded_checkpoint_match_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = random_checkpoint("qwen3_tts")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()
    assert (open_family("qwen3_tts").synthetic.version, digest[:16]) == (3, "b3893465e5303c2c")
