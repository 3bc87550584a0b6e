"""Folders of Qwen3-TTS that are damaged, of another kind, or tuned: one line each, or accepted."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.errors import VoxportError
from voxport.bundle.manifest import ExportRequest
from voxport.bundle.spec import LayoutName
from voxport.export.__main__ import main as export
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.model.inspection import inspect_checkpoint
from voxport.model.synthetic.checkpoint import random_checkpoint, write_checkpoint
from voxport.quantize.modules import QuantizedLinear

WEIGHTS, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(random_checkpoint("qwen3_tts"), tmp_path / "model"))


def edit(folder: Path, name: str, **changes: Any) -> None:
    """Sets values of a JSON file; a dotted name leads into sections."""
    path = folder / name
    content = json.loads(path.read_text())
    for key, value in changes.items():
        *sections, last = key.split("__")
        section = content
        for each in sections:
            section = section[each]
        section[last] = value
    path.write_text(json.dumps(content))


def message(folder: Path) -> str:
    with pytest.raises(VoxportError) as raised:
        Source(folder)
    text = str(raised.value)
    assert "\n" not in text
    return text


CONFIG, CODEC_CONFIG, GENERATION = "config.json", "speech_tokenizer/config.json", "generation_config.json"
TALKER, SPEAKER = "talker_config__", "speaker_encoder_config__"
BAD = [
    (
        CODEC_CONFIG,
        "model_type",
        "qwen3_tts_tokenizer_25hz",
        "which is not supported; give a 12 Hz checkpoint",
    ),
    (CONFIG, "tokenizer_type", "other", "tokenizer_type"),
    (CONFIG, "tts_model_type", "singer", "tts_model_type"),
    (CONFIG, "tts_pad_token_id", 10**6, "tts_pad_token_id 1000000.*text_vocab_size"),
    (CONFIG, "im_start_token_id", -1, "im_start_token_id"),
    (CONFIG, f"{TALKER}codec_bos_id", 10**6, "codec_bos_id 1000000.*vocab_size"),
    (CONFIG, f"{TALKER}spk_id", {"anna": 10**6}, "anna.*1000000"),
    (CONFIG, f"{TALKER}codec_language_id", {"english": 10**6}, "english.*1000000"),
    (CONFIG, f"{TALKER}codec_language_id", {"english": 7}, "codec_language_id.english 7 is the id of a code"),
    (CONFIG, f"{TALKER}codec_eos_token_id", 7, "is the id of a code; control ids are 256 and above"),
    (CONFIG, f"{TALKER}num_code_groups", 3, "num_code_groups|num_quantizers"),
    (CONFIG, f"{TALKER}intermediate_size", 32, "shape"),
    (CONFIG, f"{TALKER}vocab_size", 1024, "vocab_size 1024 leaves no codes"),
    (CONFIG, f"{TALKER}vocab_size", 1281, "makes 257 codes, but decoder_config.codebook_size .* only 256"),
    (CONFIG, f"{TALKER}code_predictor_config__vocab_size", 257, "vocab_size makes 257 codes.* only 256"),
    (
        CODEC_CONFIG,
        "encoder_config__codebook_size",
        257,
        "codebook_size of the codec makes 257 codes.* only 256",
    ),
    (CONFIG, f"{SPEAKER}enc_dim", 32, "speaker_encoder_config.enc_dim 32, but the model takes"),
    (CONFIG, f"{SPEAKER}sample_rate", 16000, "sample_rate 16000, but the model takes 24000"),
    (CODEC_CONFIG, "output_sample_rate", 48000, "48000, but 12.5 frames of decode_upsample_rate are 24000"),
    (CODEC_CONFIG, "output_sample_rate", 22050, "22050, but 12.5 frames of decode_upsample_rate are 24000"),
    (CODEC_CONFIG, "decode_upsample_rate", 3840, "3840, but the decoder makes 1920"),
    (CONFIG, f"{SPEAKER}mel_dim", 80, "speaker_encoder_config.mel_dim 80"),
    (CODEC_CONFIG, "input_sample_rate", 16000, "16000, but 12.5 frames of encode_downsample_rate are 24000"),
    (
        CODEC_CONFIG,
        "encode_downsample_rate",
        960,
        "24000, but 12.5 frames of encode_downsample_rate are 12000",
    ),
    (GENERATION, "top_p", 2, "top_p"),
    (GENERATION, "max_new_tokens", 1, "max_new_tokens"),
]


@pytest.mark.parametrize(("file", "key", "value", "says"), BAD)
def test_a_configuration_that_does_not_fit_is_named(
    folder: Path, file: str, key: str, value: Any, says: str
) -> None:
    edit(folder, file, **{key: value})
    assert re.search(says, message(folder))


def test_a_dialect_of_no_language_is_named(folder: Path) -> None:
    edit(folder, CONFIG, talker_config__spk_id={"eric": 9}, talker_config__spk_is_dialect={"eric": "klingon"})
    assert "spk_is_dialect.eric 'klingon'" in message(folder)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, CODEC_CONFIG, CODEC, "vocab.json", "merges.txt"])
def test_a_missing_part_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in message(folder)


@pytest.mark.parametrize("name", [WEIGHTS, CODEC])
@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_a_half_downloaded_file_is_named(folder: Path, name: str, kept: float) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(kept * len(content))])
    assert name in message(folder)


@pytest.mark.parametrize("name", [WEIGHTS, CODEC])
def test_a_half_downloaded_shard_is_named(folder: Path, name: str) -> None:
    """Either file may be split; an index then names the shards."""
    path, tensors = folder / name, load_file(folder / name)
    shards = {key: f"model-{index % 2 + 1}-of-2.safetensors" for index, key in enumerate(sorted(tensors))}
    for shard in set(shards.values()):
        save_file({key: tensors[key] for key in tensors if shards[key] == shard}, path.with_name(shard))
    path.with_name(f"{path.name}.index.json").write_text(json.dumps({"weight_map": shards}))
    path.unlink()
    Source(folder)
    last = path.with_name("model-2-of-2.safetensors")
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    assert f"{last}: " in message(folder)
    last.unlink()
    assert f"{last}: " in message(folder)


def test_weights_that_mlx_quantised_are_named(folder: Path) -> None:
    found = load_file(folder / WEIGHTS)
    name = "talker.model.layers.0.self_attn.q_proj"
    rows = len(found[f"{name}.weight"])
    found[f"{name}.weight"] = torch.zeros(rows, 8, dtype=torch.int32)
    found |= {f"{name}.{part}": torch.zeros(rows, 2) for part in ("scales", "biases")}
    save_file(found, folder / WEIGHTS)
    assert f"{name}.biases: the weights were quantised for MLX" in message(folder)


def test_the_defaults_of_sampling_are_those_of_the_checkpoint(folder: Path) -> None:
    drawn = {"temperature": 0.7, "top_k": 11, "top_p": 0.8, "repetition_penalty": 1.2}
    others = {"subtalker_temperature": 0.6, "subtalker_top_k": 12, "subtalker_top_p": 0.85}
    path = folder / "generation_config.json"
    path.write_text(json.dumps(drawn | others | {"max_new_tokens": 99}))
    expected = drawn | {name.replace("subtalker", "others"): value for name, value in others.items()}
    assert sampling_defaults(folder) == (expected, 98)
    edit(folder, path.name, do_sample=False)
    assert sampling_defaults(folder) == (expected | {"temperature": 0}, 98)
    edit(folder, path.name, do_sample=True, subtalker_dosample=False)
    assert sampling_defaults(folder) == (expected | {"others_temperature": 0}, 98)
    path.unlink()  # as in the published package
    published = {"temperature": 0.9, "top_k": 50, "top_p": 1, "repetition_penalty": 1.05}
    others = {"others_temperature": 0.9, "others_top_k": 50, "others_top_p": 1}
    assert sampling_defaults(folder) == (published | others, 2047)


def sampling_defaults(folder: Path) -> tuple[dict[str, float], int]:
    constants = resolve(Source(folder), ExportRequest()).constants
    assert isinstance(constants, QwenConstants)
    return constants.sampling_defaults.model_dump(), constants.max_frames


def test_w4_keeps_the_predictor_at_8_bits_and_the_codec_in_floats() -> None:
    """The default of the family. A recipe of a component takes precedence, and rules before it."""
    source = Source(random_checkpoint("qwen3_tts"))

    def bits(*rules: str, **recipes: str) -> list[set[int]]:
        """Of the quantised weights of three graphs."""
        request = ExportRequest(quant="w4", quant_for=tuple(recipes.items()), rules=rules)
        model = Model(resolve(source, request), "BSHD")
        graphs = [model.graph(name).module for name in ("talker", "code_predictor", "codec")]
        return [
            {part.scheme.bits for part in graph.modules() if isinstance(part, QuantizedLinear)}
            for graph in graphs
        ]

    assert bits() == bits(codec="none") == [{4}, {8}, set()]
    assert bits(code_predictor="w4") == [{4}, {4}, set()]
    with pytest.raises(VoxportError, match=r"^quant_for codec=w8: .* floats.* speech_tokenizer\.\*=w8$"):
        bits(codec="w8")
    assert bits("speech_tokenizer.*=w8", codec="w8") == [{4}, {8}, {8}]


def tuned(folder: Path, *kept: str, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)) -> None:
    """As fine-tuning scripts leave a copy of a Base folder: row 300 of the table of codes is the speaker, and
    tensors of the speaker encoder are left out unless `kept` has their prefix. `dtypes` of tensors alternate.
    """
    found = load_file(folder / WEIGHTS)
    names = [name for name in found if not name.startswith("speaker_encoder.") or name.startswith(kept)]
    table = "talker.model.codec_embedding.weight"
    found[table][300] = torch.arange(found[table].shape[1])
    save_file(
        {name: found[name].to(dtypes[index % len(dtypes)]) for index, name in enumerate(names)},
        folder / WEIGHTS,
    )
    speakers = {f"Speaker {number} É": 100 + number for number in range(200)} | {"ANNA": [300]}
    edit(folder, CONFIG, tts_model_type="custom_voice", talker_config__spk_id=speakers)


def test_speakers_of_a_tuned_folder_have_any_names_and_ids(folder: Path) -> None:
    """Also many of them, without `spk_is_dialect`, and with a section of another model's speaker encoder."""
    tuned(folder)
    edit(folder, CONFIG, speaker_encoder_config__enc_dim=7, speaker_encoder_config__mel_dim=80)
    content = json.loads((folder / CONFIG).read_text())
    del content["talker_config"]["spk_is_dialect"]
    (folder / CONFIG).write_text(json.dumps(content))
    resolved = resolve(Source(folder), ExportRequest())
    constants = resolved.constants
    assert isinstance(constants, QwenConstants) and len(constants.speakers) == 201
    assert constants.speakers["anna"] == 300 and constants.speakers["speaker 7 é"] == 107
    assert "speaker_encoder" not in resolved.graphs
    table = Source(folder).checkpoint.tensor("talker.model.codec_embedding.weight")
    assert table[300].tolist() == list(range(table.shape[1]))


@pytest.mark.parametrize("kept", [(), ("speaker_encoder.",)])
def test_a_tuned_folder_of_mixed_dtypes_exports_and_converts(folder: Path, kept: tuple[str, ...]) -> None:
    """A script that trains an adapter keeps the speaker encoder."""
    tuned(folder, *kept, dtypes=(torch.float32, torch.float16, torch.bfloat16))
    found, expected = inspect_checkpoint(folder), load_file(folder / WEIGHTS)
    assert found["loadable"] and found["dtypes"] == ["BF16", "F16", "F32"]
    assert any("which a Base model makes" in note for note in found["notes"]) == bool(kept)
    Model(resolve(Source(folder), ExportRequest()), "BSHD").graph("talker")
    mlx, back = folder.with_name("mlx"), folder.with_name("back")
    for source, out, to in (
        (folder, mlx, "mlx"),
        (mlx, back, "published"),
        (folder, out_of(back), "published"),
    ):
        assert export(["convert", str(source), str(out), "--to", to]) == 0
    for out in (back, out_of(back)):
        converted = load_file(out / WEIGHTS)
        assert converted.keys() == expected.keys()
        assert all(converted[name].dtype == expected[name].dtype for name in expected)
        assert all(torch.equal(converted[name], expected[name]) for name in expected)
        assert json.loads((out / CONFIG).read_text()) == json.loads((folder / CONFIG).read_text())


def out_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-too")


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights, and constants that were folded."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


@pytest.mark.parametrize(
    ("recipe", "layout"), [("none", "BHSD, staged"), ("w8", "BHSD, staged"), ("w4", "BSHD"), ("lut4", "BHSD")]
)
def test_the_variants_of_the_embedded_model_have_the_same_graphs(
    recipe: str, layout: LayoutName, tmp_path: Path
) -> None:
    """But for the encoders of the Base model. What is verified of one variant thus holds for the others."""
    folders = [random_checkpoint("qwen3_tts")]
    for variant in ("custom-voice", "voice-design"):
        folders.append(tmp_path / variant)
        write_checkpoint(folders[-1], f"tiny-{variant}", key="qwen3_tts")
    request = ExportRequest(quant=recipe)
    base, *others = (Model(resolve(Source(folder), request), layout) for folder in folders)
    parts = {part.name: part for part in base.components}
    assert set(parts) - {part.name for part in others[0].components} == {"speech_encoder", "speaker_encoder"}
    for other in others:
        for part in other.components:
            assert part.signature == parts[part.name].signature
            found, expected = (tensors_of(model.module(part.name)) for model in (other, base))
            assert found.keys() == expected.keys() and found
            assert all(torch.equal(found[name], expected[name]) for name in found)
