"""Folders of mlx-audio's own `convert`, with floats and with every mode of MLX, convert to published ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_audio.convert import convert as convert_by_mlx_audio
from mlx_audio.tts.models.voxtral_tts import voxtral_tts
from support.export.conversions import FOLDERS, assert_equal, convert, rewrite, tensors
from support.files import contents

from voxport.model.families import open_family
from voxport.model.mlx.layout import quantization_of

CONFIG, WEIGHTS = "config.json", "consolidated.safetensors"
pytestmark = pytest.mark.slow
mx.set_default_device(mx.cpu)


def wide(folder: Path) -> Path:
    """The golden Voxtral-TTS with wider feed-forward layers: mlx-audio quantises linears of 64 inputs, or a
    multiple.
    """
    shutil.copytree(FOLDERS["voxtral_tts"], folder)
    params = json.loads((folder / "params.json").read_text()) | {"hidden_dim": 192}
    for name, others in (("params.json", {}), (CONFIG, {"model_type": "voxtral_tts"})):
        (folder / name).write_text(json.dumps(params | others))

    def widen(content: dict[str, torch.Tensor]) -> None:
        for name in (name for name in content if name.startswith("layers.") and ".feed_forward." in name):
            axis = 1 if ".w2." in name else 0
            more = content[name].narrow(axis, 0, 192 - content[name].shape[axis])
            content[name] = torch.cat((content[name], more), axis)

    rewrite(folder / WEIGHTS, widen)
    return folder


OPTIONS: dict[str, dict[str, Any]] = {
    "floats": {},
    "integers": {"q_bits": 4, "q_group_size": 32},
    "three_bits": {"q_bits": 3},
    "mixed": {"quant_predicate": "mixed_2_6"},  # an entry for each layer
    "mxfp4": {"q_mode": "mxfp4"},
    "nvfp4": {"q_mode": "nvfp4"},
    "mxfp8": {"q_mode": "mxfp8"},
}


@pytest.fixture(scope="module", params=OPTIONS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `source` beside it, converted by mlx-audio, which copies the published weights as well."""
    folder = tmp_path_factory.mktemp("mlx_audio")
    source = wide(folder / "source")
    options, out = OPTIONS[request.param], folder / request.param
    with pytest.MonkeyPatch.context() as patch:  # 0.6.2 asks for `layers`, which its model lacks
        layers = property(lambda model: model.language_model.model.model.layers)
        patch.setattr(voxtral_tts.Model, "layers", layers, raising=False)
        convert_by_mlx_audio(str(source), str(out), model_domain="tts", quantize=bool(options), **options)
    are_equal = request.param == "floats"  # otherwise it must be said which of the two is read
    assert convert(out, folder / "twice", "--to", "published") == (0 if are_equal else 2)
    (out / WEIGHTS).unlink()
    return Path(out)


def test_they_convert_to_what_mlx_computes_from_them(made: Path, tmp_path: Path) -> None:
    assert convert(made, tmp_path / "back", "--to", "published") == 0
    back, expected = tensors(tmp_path / "back"), tensors(made.parent / "source")
    entries = {path for path, entry in quantization_of(made).items() if isinstance(entry, dict)}
    stored: Any = mx.load(str(made / "model.safetensors"))
    packed = {name.removesuffix(".scales") for name in stored if name.endswith(".scales")}
    assert bool(packed) == (made.name != "floats") and entries <= packed
    if not packed:
        assert_equal(back, expected)
        return
    assert back.keys() == expected.keys()
    mlx, count, content = open_family("voxtral_tts").mlx, 0, quantization_of(made)
    for name in expected:
        path = mlx.name(name).removesuffix(".weight")
        if path not in packed:
            assert torch.equal(back[name], expected[name]), name
            continue
        count += 1
        parts = [stored.get(path + end) for end in (".weight", ".scales", ".biases")]
        entry: Any = {key: content[key] for key in ("group_size", "bits", "mode")} | content.get(path, {})
        values = np.array(mx.dequantize(*parts, **entry).astype(mx.float32))
        assert torch.equal(back[name].float(), torch.from_numpy(values)), name
    assert count == len(packed) >= 3


def test_a_second_conversion_copies_them_and_ours_is_stable(made: Path, tmp_path: Path) -> None:
    assert convert(made, tmp_path / "first", "--to", "mlx") == 0
    first: Any = mx.load(str(tmp_path / "first" / "model.safetensors"))
    stored: Any = mx.load(str(made / "model.safetensors"))
    for name in stored:
        assert name.endswith("inv_freq") or mx.array_equal(first[name], stored[name]), name
    assert convert(tmp_path / "first", tmp_path / "second", "--to", "mlx") == 0
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


def test_shards_and_a_file_beside_the_published_weights_are_the_same(made: Path, tmp_path: Path) -> None:
    """mlx-audio writes shards of 5 GB, and leaves a copy of the published weights in the folder."""
    assert convert(made, tmp_path / "expected", "--to", "published") == 0
    folder, named = tmp_path / made.name, ("--weights", "model.safetensors")
    shutil.copytree(made, folder)
    shutil.copy(made.parent / "source" / WEIGHTS, folder)
    assert convert(folder, tmp_path / "named", "--to", "published", *named) == 0
    (folder / WEIGHTS).unlink()
    stored: Any = mx.load(str(folder / "model.safetensors"))
    places = {name: f"model-{1 + index % 2:05}-of-00002.safetensors" for index, name in enumerate(stored)}
    for shard in {*places.values()}:
        part = {name: stored[name] for name in stored if places[name] == shard}
        mx.save_safetensors(str(folder / shard), part, metadata={"format": "mlx"})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert convert(folder, tmp_path / "shards", "--to", "published") == 0
    for out in ("named", "shards"):
        assert_equal(tensors(tmp_path / out), tensors(tmp_path / "expected"))
