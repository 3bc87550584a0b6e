"""mlx-audio's own loader, with its guess of layouts, opens a converted Qwen3-TTS of more than 64 channels.

The guess is wrong for the fewer channels of the golden checkpoints. MLX runs on the processor, in float32.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch
from mlx_audio.tts.utils import load_model
from support.export.mlx_values import assert_near

from voxport.export.__main__ import main as export
from voxport.model.checkpoint import Checkpoint, materialize
from voxport.model.families import open_family
from voxport.model.qwen3_tts import sizes
from voxport.model.qwen3_tts.codec.decoder import CodecDecoder
from voxport.model.qwen3_tts.codec.weights import codec_contexts
from voxport.model.qwen3_tts.speaker import SpeakerEncoder
from voxport.model.synthetic.checkpoint import write_checkpoint

WIDTH, FRAMES = 72, 2
pytestmark = pytest.mark.slow
mx.set_default_device(mx.cpu)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights whose convolutions over one column have `WIDTH` channels or more."""
    tiny, folder = sizes.SIZES["tiny"], tmp_path_factory.mktemp("wide") / "published"
    others = {"enc_attention_channels": WIDTH, "enc_se_channels": WIDTH}
    size = replace(
        tiny,
        speaker={"enc_channels": [WIDTH] * 4 + [3 * WIDTH], **others},
        decoder=tiny.decoder
        | {
            "decoder_dim": 4 * WIDTH,
            "upsample_rates": [24, 20],
            "codebook_dim": 2 * WIDTH,
            "latent_dim": WIDTH,
        },
        encoder=tiny.encoder | {"num_key_value_heads": tiny.encoder["num_attention_heads"]},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sizes.SIZES, "tiny", size)
        write_checkpoint(folder, "tiny", key="qwen3_tts")
    return folder


@torch.no_grad()
def test_the_loader_of_mlx_audio_guesses_the_layout_of_a_wide_qwen3_tts(wide: Path, tmp_path: Path) -> None:
    """The vector of a speaker and the audio of codes are ours."""
    assert export(["convert", str(wide), str(tmp_path / "mlx"), "--to", "mlx", "--dtype", "f32"]) == 0
    model, family = load_model(tmp_path / "mlx"), open_family("qwen3_tts")
    config: Any = family.layout.load_config(wide)
    root: Any = family.build_root(config)
    materialize(root, Checkpoint(family.layout.weight_files(wide)), ("speech_tokenizer", "speaker_encoder"))
    mel = torch.randn(1, 50, 128, generator=torch.Generator().manual_seed(0))
    assert_near(
        model.speaker_encoder(mx.array(mel.numpy())), SpeakerEncoder(root.speaker_encoder)(mel).numpy()
    )
    decoder = config.codec.decoder_config
    codes = torch.arange(FRAMES * decoder.num_quantizers).reshape(1, FRAMES, -1) % decoder.codebook_size
    shape = (1, decoder.sliding_window + FRAMES - 1, decoder.num_key_value_heads, decoder.head_dim)
    states = [torch.ones(shape) for _ in range(2 * decoder.num_hidden_layers)]
    states += [torch.ones(1, *size) for _, *size in codec_contexts(decoder)]
    expected, *_ = CodecDecoder(root.speech_tokenizer.decoder, decoder)(codes, torch.tensor([0]), *states)
    assert_near(model.speech_tokenizer.decoder(mx.array(codes.mT.numpy()))[:, 0], expected.numpy())
