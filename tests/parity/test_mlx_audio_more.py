"""mlx-audio opens converted folders by its own loaders, strictly, and computes the golden values.

MLX runs on the processor, in float32.
"""

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_audio.stt.utils import load_model as load_speech_to_text
from mlx_audio.tts.models.qwen3_tts import qwen3_tts
from mlx_audio.tts.models.qwen3_tts.config import (
    Qwen3TTSTokenizerConfig,
    Qwen3TTSTokenizerDecoderConfig,
    Qwen3TTSTokenizerEncoderConfig,
    filter_dict_for_dataclass,
)
from mlx_audio.tts.models.qwen3_tts.speech_tokenizer import Qwen3TTSSpeechTokenizer
from mlx_audio.tts.utils import load_model
from support.export.mlx_values import assert_near
from support.paths import GOLDEN
from support.stand_ins import noting

from voxport.export.__main__ import main as export
from voxport.export.conversion import convert as planning
from voxport.model.families import open_family
from voxport.model.inspection import open_family_of
from voxport.model.mlx.tensor_layouts import stored_tensors
from voxport.model.stored_weights import StoredWeights
from voxport.model.synthetic.checkpoint import random_checkpoint

VOXTRAL, QWEN = GOLDEN / "voxtral_tts" / "checkpoint", GOLDEN / "qwen3_tts"
CODEC = "speech_tokenizer."  # prefix of the names of its tensors
pytestmark = pytest.mark.slow
mx.set_default_device(mx.cpu)


def convert(source: Path, out: Path, *options: str) -> Path:
    assert export(["convert", str(source), str(out), "--to", "mlx", *options]) == 0
    return out


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces mlx-audio's guess of layouts, which is wrong for the few channels of the golden checkpoints.
    The speaker encoder is in MLX's layout, the speech tokenizer as published.
    """
    monkeypatch.setattr(qwen3_tts.Model, "sanitize", staticmethod(dict))
    monkeypatch.setattr(qwen3_tts, "check_array_shape_qwen3", lambda array: False)


@pytest.fixture(scope="module")
def voxtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(VOXTRAL, tmp_path_factory.mktemp("mlx") / "voxtral_tts", "--dtype", "f32")


def test_voxtral_tts(voxtral: Path) -> None:
    model, reference = load_model(voxtral), np.load(GOLDEN / "voxtral_tts" / "reference.npz")
    ids = mx.array(reference["ids"])[None]
    rows = np.array(model.language_model.embed_tokens(ids)[0])
    rows[reference["ids"] == model.config.audio_token_id] = reference["voice"]
    hidden = model.language_model.model.model(ids, input_embeddings=mx.array(rows)[None])
    assert_near(hidden, reference["prefill_hidden"])
    last = mx.array(reference["hidden"][3:4])
    both = mx.concatenate([last, mx.zeros_like(last)])
    x = mx.concatenate([mx.array(reference["vel_x"])] * 2)
    velocity = model.acoustic_transformer._predict_velocity(x, mx.zeros(2), both)
    assert_near(velocity, reference["velocity_0.0000"])
    semantic = model.acoustic_transformer._predict_semantic(mx.array(reference["hidden"]))
    assert semantic.tolist() == reference["codes"][:, 0].tolist()
    assert_near(model.audio_tokenizer.decode(mx.array(reference["codec_codes"])), reference["audio"])
    assert sorted(model._voice_embedding_files) == ["fr_male", "neutral_female"]


def test_voices_of_voxtral_tts_are_those_of_the_checkpoint(voxtral: Path) -> None:
    layout = open_family("voxtral_tts").layout
    for name, rows in layout.voices(VOXTRAL, layout.load_config(VOXTRAL)).items():
        file: Any = mx.load(str(voxtral / "voice_embedding" / f"{name}.safetensors"))
        np.testing.assert_array_equal(np.array(file["embedding"].astype(mx.float32)), rows.float().numpy())


def test_the_loader_of_mlx_audio_opens_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of integers, whose scales may be in another shard than the next weight."""
    monkeypatch.setattr(planning, "MAX_SHARD", 200_000)
    reference = np.load(GOLDEN / "voxtral_tts" / "reference.npz")
    for name, options in (("floats", ()), ("w4", ("--quant", "w4"))):
        folder = convert(VOXTRAL, tmp_path / name, "--dtype", "f32", *options)
        assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
        audio = load_model(folder).audio_tokenizer.decode(mx.array(reference["codec_codes"]))
        assert_near(audio, reference["audio"])  # the codec has no integers


def test_weight_norms_that_were_folded_give_the_same_audio(tmp_path: Path) -> None:
    """By way of the layout of MLX's own modules, which has the weights."""
    folded = convert(VOXTRAL, tmp_path / "folded", "--layout", "mlx", "--dtype", "f32")
    model, reference = (
        load_model(convert(folded, tmp_path / "pairs", "--layout", "mlx-audio")),
        np.load(GOLDEN / "voxtral_tts" / "reference.npz"),
    )
    assert_near(model.audio_tokenizer.decode(mx.array(reference["codec_codes"])), reference["audio"])


def test_acoustic_codes_of_voxtral_tts(voxtral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = load_model(voxtral), np.load(GOLDEN / "voxtral_tts" / "reference.npz")
    noise = iter(reference["noise"])
    monkeypatch.setattr(mx.random, "normal", lambda shape: mx.array(next(noise)).reshape(shape))
    codes = model.acoustic_transformer.forward_batch(mx.array(reference["hidden"])[None])
    assert codes[0].tolist() == reference["codes"].tolist()


QUANTS = pytest.mark.parametrize("quant", ["w4", "affine2g32", "affine5g32", "mxfp4", "nvfp4", "mxfp8"])


@QUANTS
def test_the_loader_of_mlx_audio_opens_integers_of_voxtral_tts(tmp_path: Path, quant: str) -> None:
    """Hidden states are those of the same weights as floats."""
    packed = convert(VOXTRAL, tmp_path / "packed", "--quant", quant, "--dtype", "f32")
    assert export(["convert", str(packed), str(tmp_path / "back"), "--to", "published"]) == 0
    floats = convert(tmp_path / "back", tmp_path / "floats")
    ids = mx.array(np.load(GOLDEN / "voxtral_tts" / "reference.npz")["ids"])[None]
    found, expected = (load_model(folder).language_model.model.model(ids) for folder in (packed, floats))
    assert_near(found, np.array(expected))


REALTIME = GOLDEN / "voxtral_realtime" / "checkpoint"


def load_listener(folder: Path) -> Any:
    """With a tokenizer, without which mlx-audio's loader opens nothing."""
    shutil.copy(random_checkpoint("voxtral_realtime") / "tekken.json", folder)
    return load_speech_to_text(folder)


def test_the_loader_of_mlx_audio_opens_voxtral_realtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_listener(convert(REALTIME, tmp_path / "out", "--dtype", "f32"))
    reference, tokens = np.load(GOLDEN / "voxtral_realtime" / "reference.npz"), list[int]()
    audio = np.load(GOLDEN / "voxtral_realtime" / "audio.npy")
    _, count, prompt, logits, *_ = model._encode_and_prefill(audio)
    assert (count, prompt) == (reference["n_audio"], reference["prompt_len"])
    assert_near(logits, reference["prefill_logits"])
    assert_near(model.encoder(model._prepare_mel(audio)[0]), reference["audio_embeds"])
    monkeypatch.setattr(model._tokenizer, "decode", noting(lambda ids: "", tokens.extend))
    model.generate(mx.array(audio))
    assert tokens == reference["tokens"].tolist()


@QUANTS
def test_the_loader_of_mlx_audio_opens_integers_of_voxtral_realtime(tmp_path: Path, quant: str) -> None:
    """Logits are those of the same weights as floats."""
    packed = convert(REALTIME, tmp_path / "packed", "--quant", quant, "--dtype", "f32")
    assert export(["convert", str(packed), str(tmp_path / "back"), "--to", "published"]) == 0
    floats = convert(tmp_path / "back", tmp_path / "floats")
    audio = np.load(GOLDEN / "voxtral_realtime" / "audio.npy")
    found, expected = (load_listener(folder)._encode_and_prefill(audio)[3] for folder in (packed, floats))
    assert_near(found, np.array(expected))


def test_both_encoders_of_qwen3_tts(narrow: None, tmp_path: Path) -> None:
    """A code is at least 1.3e-3 from a tie, and the encoder's states are within 1e-4."""
    model = load_model(convert(QWEN / "base", tmp_path / "out", "--dtype", "f32"))
    reference = np.load(QWEN / "base.npz")
    assert_near(model.speaker_encoder(mx.array(reference["mel"])[None])[0], reference["speaker_embedding"])
    for name in ("ref", "short"):
        samples = mx.array(reference[f"{name}_pcm"].astype(np.float32) / 32768)[None, None]
        codes = model.speech_tokenizer.encode(samples)
        assert codes[0].T.tolist() == reference[f"{name}_codes"].tolist()


@pytest.mark.parametrize(
    ("name", "run"), [("base", "xvector"), ("custom_voice", "speaker"), ("voice_design", "design")]
)
def test_variants_of_qwen3_tts(narrow: None, tmp_path: Path, name: str, run: str) -> None:
    """The talker of 1.7B, whose predictor has a projection, over a whole run; and the audio of its codes."""
    model = load_model(convert(QWEN / name, tmp_path / "out", "--dtype", "f32"))
    reference = np.load(QWEN / f"{name}.npz")
    prefill, inputs, codes = (reference[f"{run}_{key}"] for key in ("prefill", "inputs", "codes"))
    logits, hidden = model.talker(mx.array(np.concatenate((prefill, inputs)))[None])
    assert_near(hidden[0, len(prefill) - 1 : -1], reference[f"{run}_hidden"])
    assert_near(logits[0, len(prefill) - 1 :], reference[f"{run}_logits"])
    for state, frame, scores in zip(
        reference[f"{run}_hidden"], codes, reference[f"{run}_cp_logits"], strict=True
    ):
        assert_near(predictor_logits(model.talker, state, frame), scores)
    assert_near(model.speech_tokenizer.decoder(mx.array(codes.T)[None])[0, 0], reference[f"{run}_audio"])


@QUANTS
def test_the_loader_of_mlx_audio_opens_integers_of_qwen3_tts(
    narrow: None, tmp_path: Path, quant: str
) -> None:
    load_model(convert(QWEN / "base", tmp_path / "packed", "--quant", quant))  # strictly


def predictor_logits(talker: Any, hidden: np.ndarray, codes: np.ndarray) -> mx.array:
    """Logits of the codes of a frame but the first, each behind the codes before it."""
    predictor, rows = talker.code_predictor, list[mx.array]()
    cache = predictor.make_cache()
    first = talker.get_input_embeddings()(mx.array(codes[None, :1]))
    x = mx.concatenate([mx.array(hidden)[None, None], first], axis=1)
    for index, table in enumerate(predictor.codec_embedding):
        logits, cache, _ = predictor(x, cache=cache, generation_step=index)
        rows.append(logits[0, -1])
        x = table(mx.array(codes[None, index + 1 : index + 2]))
    return mx.stack(rows)


@pytest.mark.parametrize("size", ["0.6b", "1.7b"])
def test_the_layout_guess_of_mlx_audio_is_right_at_the_published_widths(size: str) -> None:
    """Its loaders give each tensor of a converted folder the shape that its modules have."""
    family = open_family("qwen3_tts")
    config = family.synthetic.documents(size)["config.json"]
    root = family.build_root(family.config_of_size(size))
    weights = {
        name: mx.zeros(stored.mlx_shape if family.mlx.is_reordered(name) else stored.shape)
        for name, stored in stored_tensors(root).items()
    }  # MLX makes no value before it is needed
    codec = {name.removeprefix(CODEC): weights.pop(name) for name in list(weights) if name.startswith(CODEC)}
    model = qwen3_tts.Model(qwen3_tts.ModelConfig.from_dict(config))
    assert shapes(qwen3_tts.Model.sanitize(weights)) == shapes(dict(tree_flatten(model.parameters())))
    expected = shapes(dict(tree_flatten(codec_model(family.synthetic.documents(size)).parameters())))
    found = shapes(Qwen3TTSSpeechTokenizer.sanitize(codec))
    assert set(found.items()) <= set(expected.items())
    # the holder leaves out parts of the quantisers that decoding or encoding does not need
    assert all(".quantizer." in name for name in expected.keys() - found.keys())


def codec_model(documents: dict[str, Any]) -> Qwen3TTSSpeechTokenizer:
    """mlx-audio's speech tokenizer, as its loader makes it."""
    document = documents["speech_tokenizer/config.json"]
    sections = {
        name: kind(**filter_dict_for_dataclass(kind, document[name]))
        for name, kind in (
            ("encoder_config", Qwen3TTSTokenizerEncoderConfig),
            ("decoder_config", Qwen3TTSTokenizerDecoderConfig),
        )
    }
    return Qwen3TTSSpeechTokenizer(Qwen3TTSTokenizerConfig(**sections))


@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [
        *(("voxtral_tts", ("w4", "--dtype", dtype), {(4, 32), (8, 32)}) for dtype in ("bf16", "f16", "f32")),
        ("voxtral_tts", ("w8",), {(8, 32), (8, 64), (8, 128)}),
        ("voxtral_realtime", ("w4g128",), {(4, 128), (8, 32)}),
        ("qwen3_tts", ("w4g128",), {(4, 128), (8, 32), (8, 64), (8, 128)}),
        ("qwen3_tts", ("w8g128",), {(8, 128)}),
    ],
)
def test_integers_are_those_that_mlx_dequantises(
    name: str, options: tuple[str, ...], kinds: set[tuple[int, int]], tmp_path: Path
) -> None:
    folder = convert(random_checkpoint(name), tmp_path / "out", "--quant", *options)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    family = open_family_of(folder, takes_mlx=True)
    source = StoredWeights(folder, family, family.layout.load_config(folder))
    packed = {key: found for key, found in source.tensors.items() if found.packing}
    assert {found.packing[:2] for found in packed.values() if found.packing} == kinds
    assert len(packed) == sum(key.endswith(".scales") for key in weights)
    for key, found in packed.items():
        path = found.name.removesuffix(".weight")
        packing, scales, biases = (weights[path + end] for end in (".weight", ".scales", ".biases"))
        bits, group, _ = found.packing or pytest.fail(key)
        expected = mx.dequantize(packing, scales, biases, group_size=group, bits=bits)
        np.testing.assert_array_equal(source.tensor(key).float(), np.array(expected.astype(mx.float32)))


def shapes(weights: dict[str, mx.array]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}
