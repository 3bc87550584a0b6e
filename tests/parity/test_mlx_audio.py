"""mlx-audio runs converted folders, and computes the golden values. MLX runs on the processor, in float32."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_audio.stt.models import voxtral_realtime
from mlx_audio.tts.models import qwen3_tts, voxtral_tts
from mlx_audio.utils import apply_quantization
from support.export.mlx_values import assert_near
from support.paths import GOLDEN
from support.stand_ins import noting

from voxport.export.__main__ import main as export
from voxport.model.families import open_family
from voxport.model.inspection import open_convertible
from voxport.model.stored_weights import StoredWeights

FOLDERS = {
    "voxtral_tts": (GOLDEN / "voxtral_tts" / "checkpoint", voxtral_tts.voxtral_tts),
    "voxtral_realtime": (GOLDEN / "voxtral_realtime" / "checkpoint", voxtral_realtime.voxtral_realtime),
    "qwen3_tts": (GOLDEN / "qwen3_tts" / "base", qwen3_tts.qwen3_tts),
}
COMPUTED = {"acoustic_transformer._time_embedding.inv_freq"}  # by mlx-audio when it opens a model
pytestmark = pytest.mark.slow
mx.set_default_device(mx.cpu)


def convert(name: str, out: Path, *options: str) -> Path:
    assert export(["convert", str(FOLDERS[name][0]), str(out), "--to", "mlx", *options]) == 0
    return out


def open_in_mlx_audio(name: str, folder: Path) -> Any:
    """mlx-audio's model with every tensor of the folder, as its loader does it. The loader's guess of layouts
    is left out: it is wrong for the few channels of the golden Qwen3-TTS.
    """
    module = FOLDERS[name][1]
    config = json.loads((folder / "config.json").read_text())
    model = module.Model(module.ModelConfig.from_dict(config))
    weights: Any = mx.load(str(folder / "model.safetensors"))
    apply_quantization(model, config, weights, model.model_quant_predicate)
    expected = dict(tree_flatten(model.parameters()))
    assert set(weights) == set(expected) - COMPUTED
    model.load_weights(list(weights.items()), strict=False)
    mx.eval(model.parameters())
    model.eval()
    return model


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A converted folder in float32 by family."""
    folder = tmp_path_factory.mktemp("mlx")
    return {name: convert(name, folder / name, "--dtype", "f32") for name in FOLDERS}


def test_voxtral_tts(floats: dict[str, Path]) -> None:
    model, reference = (
        open_in_mlx_audio("voxtral_tts", floats["voxtral_tts"]),
        np.load(GOLDEN / "voxtral_tts/reference.npz"),
    )
    ids = mx.array(reference["ids"])[None]
    rows = np.array(model.language_model.embed_tokens(ids)[0])
    rows[reference["ids"] == model.config.audio_token_id] = reference["voice"]
    hidden = model.language_model.model.model(ids, input_embeddings=mx.array(rows)[None])
    assert_near(hidden, reference["prefill_hidden"])
    last = mx.array(reference["hidden"][3:4])
    both = mx.concatenate([last, mx.zeros_like(last)])
    x = mx.concatenate([mx.array(reference["vel_x"])] * 2)
    assert_near(
        model.acoustic_transformer._predict_velocity(x, mx.zeros(2), both), reference["velocity_0.0000"]
    )
    assert_near(model.audio_tokenizer.decode(mx.array(reference["codec_codes"])), reference["audio"])
    semantic = model.acoustic_transformer._predict_semantic(mx.array(reference["hidden"]))
    assert semantic.tolist() == reference["codes"][:, 0].tolist()


def test_voices_of_voxtral_tts_are_those_of_the_checkpoint(floats: dict[str, Path]) -> None:
    family = open_family("voxtral_tts")
    source = FOLDERS["voxtral_tts"][0]
    voices = family.layout.voices(source, family.layout.load_config(source))
    assert voices
    for name, rows in voices.items():
        file: Any = mx.load(str(floats["voxtral_tts"] / "voice_embedding" / f"{name}.safetensors"))
        found = file["embedding"]
        np.testing.assert_array_equal(np.array(found.astype(mx.float32)), rows.float().numpy())


def test_voxtral_realtime(floats: dict[str, Path]) -> None:
    model = open_in_mlx_audio("voxtral_realtime", floats["voxtral_realtime"])
    reference = np.load(GOLDEN / "voxtral_realtime/reference.npz")
    audio = np.load(GOLDEN / "voxtral_realtime/audio.npy")
    _, count, prompt, logits, *_ = model._encode_and_prefill(audio)
    assert (count, prompt) == (reference["n_audio"], reference["prompt_len"])
    assert_near(logits, reference["prefill_logits"])
    assert_near(model.encoder(model._prepare_mel(audio)[0]), reference["audio_embeds"])
    tokens: list[int] = []
    model._tokenizer = type(
        "Tokens", (), {"decode": noting(lambda *_: "", lambda self, ids: tokens.extend(ids))}
    )()
    model.generate(mx.array(audio))  # the golden checkpoint has no tokenizer
    assert tokens == reference["tokens"].tolist()


def test_qwen3_tts(floats: dict[str, Path]) -> None:
    model = open_in_mlx_audio("qwen3_tts", floats["qwen3_tts"])
    reference = np.load(GOLDEN / "qwen3_tts/base.npz")
    logits, hidden = model.talker(mx.array(reference["xvector_prefill"])[None])
    assert_near(hidden[0, -1], reference["xvector_hidden"][0])
    assert_near(logits[0, -1], reference["xvector_logits"][0])
    assert_near(model.speaker_encoder(mx.array(reference["mel"])[None])[0], reference["speaker_embedding"])
    for state, codes in zip(reference["xvector_hidden"], reference["xvector_codes"], strict=True):
        assert predicted(model.talker, state, int(codes[0])) == codes[1:].tolist()


def predicted(talker: Any, hidden: np.ndarray, code: int) -> list[int]:
    """The other codes of a frame, each the one with the largest logit."""
    predictor, codes = talker.code_predictor, list[int]()
    cache = predictor.make_cache()
    first = talker.get_input_embeddings()(mx.array([[code]]))
    x = mx.concatenate([mx.array(hidden)[None, None], first], axis=1)
    for index in range(len(predictor.codec_embedding)):
        logits, cache, _ = predictor(x, cache=cache, generation_step=index)
        codes.append(int(logits[0, -1].argmax()))
        x = predictor.codec_embedding[index](mx.array([[codes[-1]]]))
    return codes


def test_the_speech_tokenizer_of_qwen3_tts(floats: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-audio's own loader takes it as published. Its guess of layouts fails for fewer than 65 channels."""
    monkeypatch.setattr(qwen3_tts.qwen3_tts, "check_array_shape_qwen3", lambda array: False)
    folder = floats["qwen3_tts"]
    model = open_in_mlx_audio("qwen3_tts", folder)
    model = qwen3_tts.qwen3_tts.Model.post_load_hook(model, folder)
    reference = np.load(GOLDEN / "qwen3_tts/base.npz")
    config: Any = open_family("qwen3_tts").layout.load_config(folder)
    window = config.codec.decoder_config.sliding_window
    codes = mx.array(reference["codec_codes"][:window].T.astype(np.int32))[None]
    audio = model.speech_tokenizer.decoder(codes)[0, 0]  # mlx-audio's attention has no window
    assert_near(audio, reference["codec_audio"][: audio.size])


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_integers_are_those_that_mlx_dequantises(name: str, dtype: str, tmp_path: Path) -> None:
    folder = convert(name, tmp_path / "out", "--quant", "w4", "--dtype", dtype)
    open_in_mlx_audio(name, folder)  # every layer takes its integers
    weights: Any = mx.load(str(folder / "model.safetensors"))
    family = open_convertible(folder)
    source = StoredWeights(folder, family, family.layout.load_config(folder))
    packed = {key: found for key, found in source.tensors.items() if found.bits}
    assert len(packed) == sum(key.endswith(".scales") for key in weights) > 20
    for key, found in packed.items():
        path = found.name.removesuffix(".weight")
        packing, scales, biases = (weights[path + end] for end in (".weight", ".scales", ".biases"))
        expected = mx.dequantize(packing, scales, biases, group_size=found.group, bits=found.bits)
        np.testing.assert_array_equal(source.tensor(key).float(), np.array(expected.astype(mx.float32)))
