"""Training of speech: the delay of acoustic values, and frames that are as far off as the model's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tools.training.data.clips import Clip
from tools.training.data.espeak import Utterance
from tools.training.data.sound import samples_of
from tools.training.data.tokens import BYTES, Encoder
from tools.training.speech.batches import (
    IGNORED,
    NEAR_SPREAD,
    NO_WORD,
    Spoken,
    encode_clips,
    make_sequence,
    make_sequences,
    product_text,
    reference_codes,
    with_near_codes,
)
from tools.training.speech.codec_model import FRAME_SAMPLES, CodecModel, Decoded
from tools.training.speech.losses import codec_losses, language_losses, mean_acoustic_loss, sound_of_frames
from tools.training.speech.model import SpeechModel, trained_config
from voxport.bundle.constants.voxtral_tts import END_AUDIO, FIRST_CODE

TOP = 20
RATE = 24000


def _noise(seed: int, frames: int) -> Clip:
    samples = np.random.default_rng(seed).integers(-9000, 9000, frames * FRAME_SAMPLES).astype(np.int16)
    return Clip(Utterance("Noise.", samples, (len(samples),), (), RATE), "af_heart")


def _said(text: str) -> Clip:
    clip = _noise(0, 2)
    return replace(clip, utterance=replace(clip.utterance, text=text))


def test_acoustic_values_are_a_frame_later_than_semantic_codes() -> None:
    """Frame t has the semantic code of the sound's frame t, and the acoustic values of its frame t - 1."""
    codec, spread, frames = CodecModel(trained_config().codec).eval(), list[torch.Tensor](), 5
    codec.encoder.spread.register_forward_hook(lambda _module, _inputs, found: spread.append(found))
    clip = _noise(0, frames)
    ((_, spoken),) = encode_clips([clip, _said("In 1999.")], codec)
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


def test_a_text_is_learned_as_the_product_gives_it_to_the_model() -> None:
    assert product_text("Wait - what did she say...") == "Wait \u2014 what did she say\u2026"
    assert product_text("It was 1999.") is None, "the product spells numbers"


def test_recordings_without_phonemes_give_finite_losses() -> None:
    """All targets of a batch are then unknown. The mean of no losses is not a number."""
    codec = CodecModel(trained_config().codec)
    losses = codec_losses(codec, [_noise(2, 500)], "0", 2)
    assert float(losses["phonemes"]) == 0 and torch.isfinite(losses["loss"])
    assert float(losses["expectation"]) == 0, "nothing says what to expect"
    ((_, spoken),) = encode_clips([_noise(2, 30)], codec.eval())
    model, encoder = SpeechModel(trained_config()), Encoder(BYTES)
    batch = make_sequences([spoken], {"af_heart": reference_codes(spoken.codes, 12)}, encoder)
    found = language_losses(model, batch, codec.likeness(model.semantic_rows), "0")
    assert float(found["phonemes"]) == 0 and torch.isfinite(found["loss"])


def test_a_code_has_near_codes_as_targets_and_the_end_has_none() -> None:
    codec = CodecModel(trained_config().codec)
    book = torch.zeros(codec.book().shape)
    book[:, 0] = 100 * torch.arange(len(book))
    book[1, 0] = 1
    codec.weights.get_parameter("quantizer.semantic_codebook.embedding_sum").data.copy_(book)
    codec.weights.get_parameter("quantizer.semantic_codebook.cluster_usage").data.fill_(1)
    found = codec.likeness(640)
    torch.testing.assert_close(found.sum(1), torch.ones(640))
    assert found[END_AUDIO, END_AUDIO] == 1 and found[FIRST_CODE + 5, FIRST_CODE + 5] == 1
    assert 0.3 < found[FIRST_CODE, FIRST_CODE + 1] < 0.5 and found[FIRST_CODE, FIRST_CODE + 2] == 0


def test_a_prompt_of_speech_is_the_published_one() -> None:
    encoder = Encoder(BYTES)
    voice, codes = torch.full((2, 3), 5), torch.tensor([[7, 2, 3], [8, 4, 5]])
    one = Spoken("Hi", "a", codes, torch.tensor([0, 1]), torch.tensor([[3] * 4, [4] * 4]))
    found = make_sequence(one, voice, encoder)
    text = encoder.encode("Hi")
    assert found.ids.tolist() == [1, 25, 24, 24, 36, *text, 35, 25, 24, 24] and len(text) == 2
    assert found.targets.tolist() == [IGNORED] * 8 + [7, 8, 1]
    assert found.is_code.tolist() == [False] * 2 + [True] * 2 + [False] * 5 + [True] * 2
    assert found.codes[9:].tolist() == codes.tolist()
    assert found.phonemes[:, 0].tolist() == [IGNORED] * 8 + [3, 4, IGNORED], "of the frame that is chosen"
    assert found.reads.tolist() == [NO_WORD] * 8 + [0, 1, 1] and found.word_of[5:8].tolist() == [0, 0, 1]
