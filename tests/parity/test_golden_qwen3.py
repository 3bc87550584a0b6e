"""Eager Qwen3-TTS equals the official package, on small random checkpoints in the published format.

Two orders of summation of the reference itself lie up to 6e-6 apart; the bars are 1e-4 and equal codes.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from model.checkpoint import Checkpoint, expected_tensors, materialize
from model.qwen3_tts.codec import CausalConv, CodecDecoder, Upsampler
from model.qwen3_tts.config import load_config
from model.qwen3_tts.encoder import CodecEncoder
from model.qwen3_tts.format import FORMAT
from model.qwen3_tts.modules import UNUSED, CodeEmbedding, Qwen3TTSWeights, Talker
from model.qwen3_tts.predictor import CodePredictor
from model.qwen3_tts.speaker import SpeakerEncoder

GOLDEN = Path(__file__).parent / "golden" / "qwen3_tts"
BAR = 1e-4
CACHE = 64
MAX_SAMPLES = 240_000
UNUSED_IN_ENCODER = tuple(  # 16 of the 20 tables, and what training needs
    f"speech_tokenizer.encoder.quantizer.{half}_residual_vector_quantizer.{name}"
    for half in ("semantic", "acoustic")
    for name in ("output_proj.", "layers.")
)


class Opened:
    """A golden checkpoint with its reference, and every module built from its weights."""

    def __init__(self, name: str):
        self.config = load_config(GOLDEN / name)
        self.reference = np.load(GOLDEN / f"{name}.npz")
        checkpoint = Checkpoint(FORMAT.weight_files(GOLDEN / name))
        with torch.device("meta"):
            self.root = Qwen3TTSWeights(self.config).requires_grad_(False)
        checkpoint.check(
            expected_tensors(self.root), (*UNUSED, *UNUSED_IN_ENCODER, "speech_tokenizer.encoder.")
        )
        materialize(self.root, checkpoint, ("talker", "speech_tokenizer", "speaker_encoder"))
        talker = self.config.talker_config
        self.embed_codes = CodeEmbedding(self.root.talker)
        self.predictor = CodePredictor(self.root.talker, talker.code_predictor_config)
        self.talker = Talker(self.root.talker, talker, CACHE)
        self.codec = CodecDecoder(self.root.speech_tokenizer["decoder"], self.config.codec.decoder_config)

    def runs(self) -> list[str]:
        return [name.removesuffix("_prefill") for name in self.reference if name.endswith("_prefill")]

    def caches(self) -> list[torch.Tensor]:
        talker = self.config.talker_config
        shape = (1, CACHE, talker.num_key_value_heads, talker.head_dim)
        return [torch.zeros(shape) for _ in range(2 * talker.num_hidden_layers)]

    def codec_states(self, frames: int) -> list[torch.Tensor]:
        """For calls of up to `frames` frames. Their values have no effect at position 0."""
        config = self.config.codec.decoder_config
        rows = config.sliding_window + frames - 1
        shape = (1, rows, config.num_key_value_heads, config.head_dim)
        states = [torch.ones(shape) for _ in range(2 * config.num_hidden_layers)]
        return states + [torch.ones(1, *size) for size in _contexts(self.codec)]


def _contexts(codec: nn.Module) -> list[tuple[int, int]]:
    """Channels and columns of the states of the convolutions, in order."""
    sizes = []
    for part in codec.modules():
        if isinstance(part, CausalConv) and part.context:
            groups = part.conv.groups
            sizes.append((part.conv.weight.shape[1] * groups, part.context))
        if isinstance(part, Upsampler) and part.context:
            sizes.append((part.weight.shape[1], part.context))
    return sizes


@pytest.fixture(scope="module", params=["base", "custom_voice"])
def opened(request) -> Opened:
    with torch.no_grad():
        return Opened(request.param)


@pytest.fixture(scope="module")
def base() -> Opened:
    with torch.no_grad():
        return Opened("base")


def near(found: torch.Tensor, expected: np.ndarray, bar: float = BAR) -> None:
    assert found.shape == expected.shape
    assert np.abs(found.numpy() - expected).max() < bar


@torch.no_grad()
def test_the_talker_and_the_predictor(opened):
    """Steps are fed what the reference was fed. A code is drawn from the codes before it."""
    reference, books = opened.reference, opened.config.talker_config.num_code_groups
    for run in opened.runs():
        codes, prefill = (torch.from_numpy(reference[f"{run}_{name}"]) for name in ("codes", "prefill"))
        codes, trailing = codes.long(), torch.from_numpy(reference[f"{run}_trailing"])
        hidden, logits, *caches = opened.talker(prefill[None], torch.tensor([0]), *opened.caches())
        for frame, chosen in enumerate(codes):
            near(hidden[0, -1], reference[f"{run}_hidden"][frame])
            if f"{run}_logits" in reference:
                near(logits[0], reference[f"{run}_logits"][frame])
            noise = torch.zeros(1, books - 1, opened.config.talker_config.code_predictor_config.vocab_size)
            first = torch.cat((chosen[:1], torch.full((books - 1,), -1)))
            found, drawn = opened.predictor(hidden[:, -1:], first[None], noise)
            if not run.startswith("sampled"):
                assert drawn[0].tolist() == chosen.tolist()
            if f"{run}_cp_logits" in reference:
                near(found[0], reference[f"{run}_cp_logits"][frame])
            fed = opened.embed_codes(chosen[None, None])
            if f"{run}_inputs" not in reference:
                break
            if frame < len(trailing):
                near((fed + trailing[frame])[0, 0], reference[f"{run}_inputs"][frame], 1e-5)
            fed = torch.from_numpy(reference[f"{run}_inputs"][frame])[None, None]
            position = torch.tensor([len(prefill) + frame])
            hidden, logits, *caches = opened.talker(fed, position, *caches)


@torch.no_grad()
def test_the_stages_of_the_codec(base):
    codes = torch.from_numpy(base.reference["codec_codes"]).long()[None, :60]
    stages = base.codec.stages(codes, torch.tensor([0]), *base.codec_states(60))
    for name in ("quantized", "pre_conv", "pre_transformer", "upsampled"):
        expected = base.reference[f"codec_{name}"]
        found = next(stages)[0]
        near(found if found.shape == expected.shape else found.T, expected)
    near(next(stages)[0, 0], base.reference["codec_audio"])


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 7])
def test_frames_decoded_one_after_another_are_those_of_one_call(base, size):
    """The end of 325 frames, which the official package decodes in parts with less context."""
    codes, states, found = base.reference["codec_codes"][:316], base.codec_states(size), []
    for start in range(0, len(codes), size):
        part = torch.from_numpy(codes[None, start : start + size]).long()
        audio, *states = base.codec(part, torch.tensor([start]), *states)
        found.append(audio[0])
    samples = torch.cat(found)
    near(samples[: len(base.reference["codec_audio"])], base.reference["codec_audio"])
    near(samples[-len(base.reference["codec_whole_tail"]) :], base.reference["codec_whole_tail"])


@torch.no_grad()
def test_the_speech_encoder(base):
    encoder = CodecEncoder(
        base.root.speech_tokenizer["encoder"],
        base.config.codec.encoder_config,
        base.config.codec.encoder_valid_num_quantizers,
        MAX_SAMPLES,
    )
    audio = torch.from_numpy(base.reference["ref_pcm"].astype(np.float32) / 32768)[None]
    *stages, codes = encoder.stages(audio)
    for name, stage in zip(("seanet", "transformer", "downsampled"), stages, strict=True):
        near(stage[0], base.reference[f"enc_{name}"])
    assert codes[0].tolist() == base.reference["ref_codes"].tolist()
    short = torch.from_numpy(base.reference["short_pcm"].astype(np.float32) / 32768)[None]
    assert encoder(short)[0].tolist() == base.reference["short_codes"].tolist()


@torch.no_grad()
def test_the_speaker_encoder(base):
    found = SpeakerEncoder(base.root.speaker_encoder)(torch.from_numpy(base.reference["mel"])[None])
    near(found[0], base.reference["speaker_embedding"])
