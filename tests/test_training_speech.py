"""Training of speech: the delay of acoustic values, and frames that are as far off as the model's own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tools.training.data.clips import Clip
from tools.training.data.espeak import Utterance
from tools.training.data.sound import samples_of
from tools.training.speech.batches import NEAR_SPREAD, encode_clips, with_near_codes
from tools.training.speech.codec_model import FRAME_SAMPLES, CodecModel, Decoded
from tools.training.speech.losses import codec_losses, mean_acoustic_loss, sound_of_frames
from tools.training.speech.model import SpeechModel, trained_config
from voxport.bundle.constants.voxtral_tts import FIRST_CODE

TOP = 20
RATE = 24000


def _noise(seed: int, frames: int) -> Clip:
    samples = np.random.default_rng(seed).integers(-9000, 9000, frames * FRAME_SAMPLES).astype(np.int16)
    return Clip(Utterance("noise", samples, (len(samples),), (), RATE), "af_heart")


def test_acoustic_values_are_a_frame_later_than_semantic_codes() -> None:
    """Frame t has the semantic code of the sound's frame t, and the acoustic values of its frame t - 1."""
    codec, spread, frames = CodecModel(trained_config().codec).eval(), list[torch.Tensor](), 5
    codec.encoder.spread.register_forward_hook(lambda _module, _inputs, found: spread.append(found))
    clip = _noise(0, frames)
    (spoken,) = encode_clips([clip], codec)
    assert len(spoken.codes) == len(spoken.words) == frames + 1
    silent = (FRAME_SAMPLES, FRAME_SAMPLES)
    padded = F.pad(torch.from_numpy(samples_of(clip, RATE))[None], silent)
    semantic = codec.nearest(codec.encoder(padded).semantic)[0]
    acoustic = ((torch.tanh(spread[0][0].mT) + 1) / 2 * TOP).round().long()
    assert torch.equal(spoken.codes[:, 0], semantic[1:] + FIRST_CODE)
    assert torch.equal(spoken.codes[:, 1:], acoustic[:-1] + FIRST_CODE)
    assert len(acoustic[:-1].unique()) > 5


def test_losses_compare_frames_with_the_sound_that_they_decode_to(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, zero = CodecModel(trained_config().codec), torch.zeros(())

    def perfect(samples: torch.Tensor, phonemes: torch.Tensor, noise: torch.Generator) -> Decoded:
        logits = torch.zeros(*phonemes.shape, 64)
        later = F.pad(samples, (FRAME_SAMPLES, 0))[:, :-FRAME_SAMPLES]
        return Decoded(later, zero, zero, zero, zero, logits, logits, zero)

    monkeypatch.setattr(codec, "forward", perfect)
    clip = _noise(1, 40)
    assert float(codec_losses(codec, [clip], "0", 2)["log_mel"]) < 1e-6
    whole = clip.utterance.samples.astype(np.float32) / 32768
    first, later = sound_of_frames(clip, 0, 3), sound_of_frames(clip, 39, 3)
    assert not first[:FRAME_SAMPLES].any() and np.allclose(first[FRAME_SAMPLES:], whole[: 2 * FRAME_SAMPLES])
    assert np.allclose(later[: 2 * FRAME_SAMPLES], whole[38 * FRAME_SAMPLES :])
    assert not later[2 * FRAME_SAMPLES :].any()


def test_near_codes_keep_the_semantic_code_and_what_is_no_frame() -> None:
    codes = torch.full((4, 50, 25), FIRST_CODE + TOP // 2)
    is_frame = torch.arange(50).expand(4, 50) >= 25
    found = with_near_codes(codes, is_frame, TOP, torch.Generator().manual_seed(0))
    assert torch.equal(found[..., 0], codes[..., 0]) and torch.equal(found[:, :25], codes[:, :25])
    moved = (found - codes)[:, 25:, 1:].float()
    assert 0.1 * TOP / 2 < moved.std() < NEAR_SPREAD * TOP / 2
    assert found[:, 25:, 1:].min() >= FIRST_CODE and found[:, 25:, 1:].max() <= FIRST_CODE + TOP


def test_the_paths_of_a_mean_lead_to_it_from_any_noise() -> None:
    """With values that no condition explains, the loss falls to their variance, and samples to their mean."""
    torch.manual_seed(0)
    model = SpeechModel(trained_config())
    head = model.weights.acoustic_transformer
    optimiser, noise = torch.optim.Adam(head.parameters(), 1e-3), torch.Generator().manual_seed(0)
    hidden = torch.zeros(256, model.config.dim)
    for _ in range(60):
        levels = torch.sign(torch.randn(256, 24, generator=noise)) * 0.6
        optimiser.zero_grad()
        loss = mean_acoustic_loss(model, levels, hidden, noise)
        loss.backward()
        optimiser.step()
    start = torch.randn(256, 24, generator=noise)
    reached = start + model.velocity(start, torch.zeros(256), hidden)
    assert float(loss) < 0.6 and float(reached.square().mean()) < 0.3
