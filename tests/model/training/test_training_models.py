"""Training passes equal the modules that are exported."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.export.rounding import float32_bar
from torch.nn.modules.module import Module
from voxport.model.voxtral_tts.components import components

from voxport.bundle.tekken import load_tekken
from voxport.model.checkpoint import Checkpoint, expected_tensors
from voxport.model.families import open_family
from voxport.model.family import Family
from voxport.model.training.data.sound import log_mel
from voxport.model.training.data.tokens import VOCAB_SIZE
from voxport.model.training.layers import attend, attend_window, project
from voxport.model.training.loop import Schedule, Trainer
from voxport.model.training.recognition.model import LONGEST_DELAY, RecognitionModel, trained_params
from voxport.model.training.speech.batches import NO_WORD
from voxport.model.training.speech.codec_model import CodecModel
from voxport.model.training.speech.model import READING_LAYERS, SpeechModel
from voxport.model.training.speech.size import REFERENCE_FRAMES, trained_config
from voxport.model.training.speech.trained import TrainedSpeech
from voxport.model.training.writing import write_recognition, write_speech
from voxport.model.voxtral_realtime.config import EncoderArgs, Options, VoxtralRealtimeConfig, parse_config
from voxport.model.voxtral_realtime.modules import Decoder, Encoder
from voxport.model.voxtral_tts.codec import Codec
from voxport.model.voxtral_tts.config import Options as SpeechOptions
from voxport.model.voxtral_tts.config import VoxtralTTSConfig
from voxport.model.voxtral_tts.modules import AcousticStep, Backbone, CodeEmbedding
from voxport.runtime.audio.mel import LogMel, MelSettings

TOKENS = 40  # beyond the window of the encoder, 64 frames


@pytest.fixture(scope="module")
def recognition() -> RecognitionModel:
    return RecognitionModel(parse_config(trained_params())).eval()


def assert_equal(found: torch.Tensor, expected: torch.Tensor, blocks: int, width: int) -> None:
    """Both add in another order: 8 sums in each block and 2 outside, of at most `width` products."""
    bar = float32_bar(8 * blocks + 2, width) * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=bar)


def _caches(args: EncoderArgs | VoxtralRealtimeConfig | VoxtralTTSConfig, rows: int) -> list[torch.Tensor]:
    return [torch.zeros(1, rows, args.n_kv_heads, args.head_dim) for _ in range(2 * args.n_layers)]


@torch.no_grad()
def test_the_encoder_is_the_exported_one(recognition: RecognitionModel) -> None:
    config, mel = recognition.config, torch.randn(2, 8 * TOKENS, 128)
    found = recognition.embed(recognition.encode(mel))
    encoder = Encoder(RecognitionModel(config).weights.audio, config)
    for row in range(2):
        states = [torch.zeros(1, 2, 128), torch.zeros(1, 1, config.encoder.dim)]
        caches = _caches(config.encoder, config.encoder.sliding_window + 4 * TOKENS)
        expected, *_ = encoder(mel[row].unflatten(0, (TOKENS, 8))[None], torch.tensor([0]), *states, *caches)
        assert_equal(found[row], expected[0], config.encoder.n_layers, config.encoder.hidden_dim)


@torch.no_grad()
def test_the_decoder_is_the_exported_one_at_every_delay(recognition: RecognitionModel) -> None:
    config, audio = recognition.config, torch.randn(2, TOKENS, recognition.config.dim)
    tokens, delay = torch.randint(0, 2048, (2, TOKENS)), torch.tensor([6, LONGEST_DELAY])
    found = recognition.decode(audio, tokens, delay)
    table = recognition.weights.audio.tok_embeddings
    decoder = Decoder(RecognitionModel(config).weights, config, Options(delay_ms="480,2400"), TOKENS)
    for row in range(2):
        x = audio[row] + table(tokens[row])
        _, last, *_ = decoder(x[None], torch.tensor([0]), torch.tensor([row]), *_caches(config, TOKENS))
        assert_equal(found[row, -1], last[0], config.n_layers, config.hidden_dim)
    assert (found[0] - found[1]).abs().max() > 0.1


@pytest.mark.parametrize("length", [3, 20, 49])
@pytest.mark.parametrize("window", [3, 20])
def test_blocks_of_a_window_are_a_mask_of_the_window(length: int, window: int) -> None:
    q, k, v = (torch.randn(2, length, heads, 8) for heads in (4, 2, 2))
    distance = torch.arange(length)[:, None] - torch.arange(length)
    expected = attend(q, k, v, torch.where((distance >= 0) & (distance < window), 0.0, -1e4))
    assert_equal(attend_window(q, k, v, window), expected, 0, length)  # sums of 8 and of `length` products


@torch.no_grad()
def test_the_codec_decoder_is_the_exported_one() -> None:
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
        assert_equal(found[row], expected[0], sum(args.decoder_transformer_lengths), args.hidden_dim)


@pytest.fixture(scope="module")
def speech() -> SpeechModel:
    return SpeechModel(trained_config()).eval()


@torch.no_grad()
def test_the_backbone_is_the_exported_one(speech: SpeechModel) -> None:
    config = speech.config
    ids, is_code = torch.randint(0, 2048, (2, TOKENS)), torch.rand(2, TOKENS) < 0.5
    codes = torch.randint(2, 22, (2, TOKENS, config.n_codebooks))
    found = speech.hidden(speech.embed(ids, codes, is_code))
    embed_codes = CodeEmbedding(
        speech.weights.get_submodule("mm_audio_embeddings.audio_codebook_embeddings.embeddings"),
        config.code_offsets,
    )
    backbone = Backbone(SpeechModel(config).weights, config, TOKENS)
    for row in range(2):
        frames = torch.cat([embed_codes(one[None]) for one in codes[row]], dim=1)
        texts = speech.weights.mm_audio_embeddings["tok_embeddings"](ids[row][None])
        x = torch.where(is_code[row][None, :, None], frames, texts)
        hidden, logits, _, *_ = backbone(x, torch.tensor([0]), *_caches(config, TOKENS))
        assert_equal(found[row], hidden[0], config.n_layers, config.hidden_dim)
        assert_equal(speech.semantic(found[row, -1]), logits[0], config.n_layers, config.hidden_dim)


@torch.no_grad()
def test_the_reading_loss_is_the_attention_that_the_model_has(speech: SpeechModel) -> None:
    """Minus the logarithm of the attention of head 0 to the word, in the layers that learn to read."""
    states = speech.states(torch.randn(1, TOKENS, speech.config.dim))
    rotation = speech.rotary(torch.arange(TOKENS)[None])
    word_of, reads = torch.full((2, 1, TOKENS), NO_WORD)
    word_of[0, 3:6], reads[0, 30] = 7, 7
    expected = []
    for layer in READING_LAYERS:
        block: Any = speech.weights.layers[layer]
        q, k, v = project(block.attention, block.attention_norm(states[layer]))
        one_hot = torch.zeros_like(v)
        one_hot[:, 3:6, 0, 0] = 1  # its attended value is the attention to these positions
        attended = attend_window(rotation(q), rotation(k), one_hot, TOKENS)
        expected.append(-attended[0, 30, 0, 0].log())
    found = speech.reading_loss(states, word_of, reads)
    torch.testing.assert_close(found, torch.stack(expected).mean())


@torch.no_grad()
def test_the_velocity_is_the_exported_one_with_and_without_condition(speech: SpeechModel) -> None:
    config, steps = speech.config, 7
    x, hidden = torch.randn(5, config.audio.n_acoustic_codebook), torch.randn(5, config.dim)
    head = SpeechModel(config).weights.acoustic_transformer
    condition = head.llm_projection(hidden)
    exported, step = AcousticStep(head, config.acoustic.dim, steps), torch.arange(5)
    _, velocity = exported(x, step, condition)
    for index, state in enumerate((hidden, torch.zeros_like(hidden))):
        found = speech.velocity(x, step / steps, state)
        assert_equal(found, velocity[:, index], config.acoustic.n_layers, config.acoustic.hidden_dim)


@torch.no_grad()
def test_codes_of_a_sound_are_in_range_and_decode_to_its_length() -> None:
    args = trained_config().codec
    model = CodecModel(args).train()
    samples = 0.1 * torch.randn(2, 6 * 1920)
    assert model(samples, torch.Generator()).samples.shape == samples.shape
    codes = model.eval().codes(samples)
    assert codes.shape == (2, 6, 1 + args.acoustic_dim) and codes.min() >= 2
    assert codes[..., 0].max() < 2 + args.semantic_codebook_size
    assert codes[..., 1:].max() < 2 + args.acoustic_codebook_size
    assert model.decode(model.dequantise(codes)).shape == samples.shape


def test_log_mel_frames_are_those_of_the_runtime() -> None:
    samples = np.random.default_rng(0).standard_normal(16000, dtype=np.float32) * 0.1
    runtime = LogMel(MelSettings(16000, 128, 400, 160, -6.5))
    expected = np.concatenate((runtime.feed(samples), runtime.finish()))
    found = log_mel(torch.from_numpy(samples)[None])[0].numpy()
    # Of noise no band has less than a hundredth of the largest power. The scale of a frame is log10 / 4.
    bar = 10 * 2 / (4 * np.log(10)) * float32_bar(2, 400)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bar)


def _is_complete(family: Family, folder: Path) -> int:
    """Loads every tensor of a checkpoint strictly, and returns the bytes of its weights."""
    config = family.load_config(folder)
    checkpoint = Checkpoint(family.format.weight_files(folder))
    root = family.build_root(config)
    assert {name: checkpoint.shape(name) for name in checkpoint.names} == expected_tensors(root)
    assert all(checkpoint.dtype(name) == "BF16" for name in checkpoint.names)
    load_tekken(folder / "tekken.json")
    return checkpoint.size


def _trainer(model: Module, folder: Path, name: str) -> Trainer:
    trainer = Trainer(model, folder, name, Schedule(0))
    trainer.record({"loss": 1.0})
    return trainer


def test_the_written_recogniser_is_complete_and_has_at_most_12_mb(
    recognition: RecognitionModel, tmp_path: Path
) -> None:
    write_recognition(tmp_path / "out", recognition, _tokens(), _trainer(recognition, tmp_path, "r"))
    assert _is_complete(open_family("voxtral_realtime"), tmp_path / "out") <= 12e6
    assert "Apache-2.0" in (tmp_path / "out" / "README.md").read_text()


def test_the_written_speaker_is_complete_and_has_at_most_16_mb(speech: SpeechModel, tmp_path: Path) -> None:
    codec = CodecModel(speech.config.codec)
    voices = [torch.full((REFERENCE_FRAMES + 1, speech.config.n_codebooks), code) for code in (2, 3)]
    trainers = [_trainer(codec, tmp_path, "c"), _trainer(speech, tmp_path, "s")]
    write_speech(tmp_path / "out", TrainedSpeech(speech, codec, voices), _tokens(), trainers)
    family = open_family("voxtral_tts")
    assert _is_complete(family, tmp_path / "out") <= 16e6
    for path in family.format.voice_files(tmp_path / "out"):
        rows = family.format.voice(tmp_path / "out" / path, family.load_config(tmp_path / "out"))
        assert rows.shape == (REFERENCE_FRAMES + 1, speech.config.dim) and rows.dtype == torch.bfloat16


def _tokens() -> list[bytes]:
    fillers = (b"%c%c" % (first, second) for first in range(65, 97) for second in range(65, 97))
    return [*(bytes([byte]) for byte in range(256)), *islice(fillers, VOCAB_SIZE - 1256)]


def test_unused_entries_of_the_book_take_the_place_of_frames() -> None:
    model = CodecModel(trained_config().codec).train()
    vectors = torch.randn(4, 16, model.args.semantic_dim)
    for _ in range(2):  # all entries begin as frames; one of them is near to nothing that comes
        model._update_book(vectors, model.nearest(vectors))
    lonely = model.nearest(vectors)[0, 0]
    for step in range(80):
        others = vectors + 0.1 * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(step))
        others[0, 0] = others[0, 1]
        model._update_book(others, model.nearest(others))
    assert (model.book()[lonely] - vectors[0, 0]).norm() > 2
    assert len(model.nearest(vectors).unique()) >= 60
