"""Training passes equal the modules that are exported."""

import pytest
import torch

from model.training.codec_model import CodecModel
from model.training.layers import attend, attend_window
from model.training.recognition_model import LONGEST_DELAY, RecognitionModel, trained_params
from model.training.speech_size import trained_config
from model.voxtral_realtime.config import Options, parse_config
from model.voxtral_realtime.modules import Decoder, Encoder
from model.voxtral_tts.codec import Codec
from model.voxtral_tts.components import components
from model.voxtral_tts.config import Options as SpeechOptions

TOKENS = 40  # beyond the window of the encoder, 64 frames


@pytest.fixture(scope="module")
def recognition() -> RecognitionModel:
    return RecognitionModel(parse_config(trained_params())).eval()


def _caches(args, rows: int) -> list[torch.Tensor]:
    return [torch.zeros(1, rows, args.n_kv_heads, args.head_dim) for _ in range(2 * args.n_layers)]


@torch.no_grad()
def test_the_encoder_is_the_exported_one(recognition):
    config, mel = recognition.config, torch.randn(2, 8 * TOKENS, 128)
    found = recognition.embed(recognition.encode(mel))
    encoder = Encoder(RecognitionModel(config).weights.audio, config)
    for row in range(2):
        states = [torch.zeros(1, 2, 128), torch.zeros(1, 1, config.encoder.dim)]
        caches = _caches(config.encoder, config.encoder.sliding_window + 4 * TOKENS)
        expected, *_ = encoder(mel[row].unflatten(0, (TOKENS, 8))[None], torch.tensor([0]), *states, *caches)
        torch.testing.assert_close(found[row], expected[0], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_decoder_is_the_exported_one_at_every_delay(recognition):
    config, audio = recognition.config, torch.randn(2, TOKENS, recognition.config.dim)
    tokens, delay = torch.randint(0, 2048, (2, TOKENS)), torch.tensor([6, LONGEST_DELAY])
    found = recognition.decode(audio, tokens, delay)
    table = recognition.weights.audio.tok_embeddings
    decoder = Decoder(RecognitionModel(config).weights, config, Options(delay_ms="480,2400"), TOKENS)
    for row in range(2):
        x = audio[row] + table(tokens[row])
        _, last, *_ = decoder(x[None], torch.tensor([0]), torch.tensor([row]), *_caches(config, TOKENS))
        torch.testing.assert_close(found[row, -1], last[0], rtol=1e-4, atol=1e-4)
    assert (found[0] - found[1]).abs().max() > 0.1


@pytest.mark.parametrize("length", [3, 20, 49])
@pytest.mark.parametrize("window", [3, 20])
def test_blocks_of_a_window_are_a_mask_of_the_window(length, window):
    q, k, v = (torch.randn(2, length, heads, 8) for heads in (4, 2, 2))
    distance = torch.arange(length)[:, None] - torch.arange(length)
    expected = attend(q, k, v, torch.where((distance >= 0) & (distance < window), 0.0, -1e4))
    torch.testing.assert_close(attend_window(q, k, v, window), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_codec_decoder_is_the_exported_one():
    args = trained_config().codec
    model = CodecModel(args).eval()
    model.encoder(torch.zeros(1, 1920))
    for name, parameter in model.weights.named_parameters():  # beyond the start, where branches are small
        parameter.data.copy_(0.5 + torch.rand_like(parameter) if "usage" in name else parameter + 0.02)
    codes = torch.stack([torch.randint(2, 2 + size, (2, 9)) for size in (510, *[21] * args.acoustic_dim)], -1)
    found = model.decode(model.dequantise(codes))
    codec = Codec(model.weights, args, SpeechOptions())
    parts = components(trained_config(), SpeechOptions(), 64, "BSHD")
    signature = next(part.signature for part in parts if part.name == "codec")
    for row in range(2):
        states = [torch.zeros(spec.shape) for spec in signature.states]
        expected, *_ = codec(codes[row][None], torch.tensor([0]), *states)
        torch.testing.assert_close(found[row], expected[0], rtol=1e-4, atol=1e-4)
