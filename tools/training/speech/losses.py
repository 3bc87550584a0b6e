"""Losses of the stages that train speech."""

import random
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tools.training.data.clips import Clip
from tools.training.data.sound import SPEECH_RATE, samples_of
from tools.training.loop import Losses, device, hash_of
from tools.training.speech.batches import (
    IGNORED,
    PromptedSpeech,
    Spoken,
    with_near_codes,
    with_wrong_frames,
)
from tools.training.speech.codec_model import FRAME_SAMPLES, CodecModel
from tools.training.speech.model import ACOUSTIC_CODES, DROPPED_CONDITIONS, SpeechModel, known_cross_entropy
from tools.training.speech.sound_batches import make_sounds, spectral_distance
from voxport.bundle.constants.voxtral_tts import FIRST_CODE
from voxport.model.voxtral_tts.config import EULER_STEPS
from voxport.model.voxtral_tts.modules import CFG_ALPHA

FRAMES = 24  # 1.92 s, the length of a sound for the codec
PHONEME_WEIGHT, COMMITMENT_WEIGHT, LINEAR_WEIGHT, FEATURES_WEIGHT = 0.3, 0.25, 0.3, 0.5
EXPECTATION_WEIGHT, REDUNDANCY_WEIGHT = 1.0, 1.0
READING_WEIGHT, ACOUSTIC_WEIGHT = 0.5, 2.0
AT_THE_START = 0.3  # share of the frames whose velocity is learned at time 0, where the mean is read


def codec_losses(model: CodecModel, clips: list[Clip], seed: str, size: int) -> Losses:
    """Losses of `size` sounds through the codec, and the accuracy of the phonemes of its codes."""
    batch = make_sounds(clips, seed, size, FRAMES)
    samples, phonemes = batch.samples.to(device()), batch.phonemes.to(device())
    noise = torch.Generator().manual_seed(hash_of(seed))
    found = model(samples, phonemes, noise)
    phonemes = phonemes.flatten()
    decoded, sounds = found.samples[:, FRAME_SAMPLES:], samples[:, :-FRAME_SAMPLES]
    features = model.feature_distance(decoded, sounds)
    with torch.autocast(device().type, enabled=False):
        logarithmic, linear = spectral_distance(decoded, sounds, seed)
    logits, early = (part.float().flatten(0, 1) for part in (found.phonemes, found.unquantised))
    phoneme_loss = (known_cross_entropy(logits, phonemes) + known_cross_entropy(early, phonemes)) / 2
    phoneme_accuracy = (logits.argmax(-1) == phonemes).float().mean()
    loss = (
        logarithmic
        + LINEAR_WEIGHT * linear
        + FEATURES_WEIGHT * features
        + PHONEME_WEIGHT * phoneme_loss
        + COMMITMENT_WEIGHT * found.commitment
        + EXPECTATION_WEIGHT * found.expectation
        + REDUNDANCY_WEIGHT * found.redundancy
    )
    return {
        "loss": loss,
        "log_mel": logarithmic,
        "linear": linear,
        "features": features,
        "phonemes": phoneme_loss,
        "phoneme_accuracy": phoneme_accuracy,
        "commitment": found.commitment,
        "expectation": found.expectation,
        "redundancy": found.redundancy,
        "unexplained": found.unexplained,
        "used": found.used,
    }


def language_losses(model: SpeechModel, batch: PromptedSpeech, likeness: torch.Tensor, seed: str) -> Losses:
    """Losses of a batch, and the share of semantic codes that are chosen, teacher-forced.

    `likeness` [rows, rows] has the targets of each code: the product chooses the likeliest one, and among
    many codes of one sound none would be likely.

    The acoustic codes that are fed back are as far off as the model's own. After a frame from another place,
    no acoustic values are learned: nothing would say which semantic code they belong to.
    """
    batch = PromptedSpeech(*(part.to(device()) for part in batch))
    codes, targets = batch.codes, batch.targets
    chosen, noise = targets != IGNORED, torch.Generator().manual_seed(hash_of(seed))
    with_others = with_wrong_frames(codes, batch.is_code & chosen, noise)
    top = model.config.audio.acoustic_codebook_size - 1
    fed = with_near_codes(with_others, batch.is_code & chosen, top, noise)
    states = model.states(model.embed(batch.ids, fed, batch.is_code))
    hidden = model.normed(states[-1])
    reading = model.reading_loss(states, batch.word_of, batch.reads)
    logits = model.semantic(hidden[chosen])
    semantic = F.cross_entropy(logits.float(), likeness[targets[chosen]])
    phonemes = model.phoneme_loss(hidden[chosen], batch.phonemes[chosen])
    follows = (with_others == codes).all(dim=-1)
    row, position = torch.nonzero(follows & (targets >= FIRST_CODE), as_tuple=True)  # all but the last
    levels = (codes[row, position + 1, 1:] - FIRST_CODE).float() * 2 / top - 1
    acoustic = mean_acoustic_loss(model, levels, hidden[row, position], noise)
    return {
        "loss": semantic + ACOUSTIC_WEIGHT * acoustic + READING_WEIGHT * reading + PHONEME_WEIGHT * phonemes,
        "semantic": semantic,
        "phonemes": phonemes,
        "acoustic": acoustic,
        "reading": reading,
        "right": (logits.argmax(-1) == targets[chosen]).float().mean(),
    }


def mean_acoustic_loss(
    model: SpeechModel, levels: torch.Tensor, hidden: torch.Tensor, noise: torch.Generator
) -> torch.Tensor:
    """Mean squared error of the values at the end of straight paths, of levels [N, A] and hidden [N, dim].

    The paths lead to what the head expects, not to the true values. The velocity is then equal at each time,
    and leads to the mean of the values from any noise. A sample is too far off for a decoder of this size.
    """
    start = torch.randn(levels.shape, generator=noise).to(levels.device)
    times, drawn, dropped = (torch.rand(len(levels), generator=noise).to(levels.device) for _ in range(3))
    times = torch.where(drawn < AT_THE_START, 0.0, (times * EULER_STEPS).floor() / EULER_STEPS)
    condition = hidden * (dropped >= DROPPED_CONDITIONS)[:, None]
    with torch.no_grad():
        expected = start + model.velocity(start, torch.zeros_like(times), condition)
    found = model.velocity(start + (expected - start) * times[:, None], times, condition)
    return F.mse_loss(found.float(), levels - start)


def decoder_losses(
    codec: CodecModel,
    model: SpeechModel,
    spoken: Sequence[tuple[Clip, Spoken]],
    sequences: PromptedSpeech,
    seed: str,
) -> Losses:
    """Losses of the codec's decoder on acoustic values that the model gives for true codes.

    `sequences` are those of `spoken`, of at least FRAMES frames each.
    """
    rng, noise = random.Random(seed), torch.Generator().manual_seed(hash_of(seed))
    top, latents, sounds = model.config.audio.acoustic_codebook_size - 1, [], []
    with torch.no_grad():
        is_frame = sequences.is_code & (sequences.targets != IGNORED)
        fed = with_near_codes(sequences.codes, is_frame, top, noise).to(device())
        embedded = model.embed(sequences.ids.to(device()), fed, sequences.is_code.to(device()))
        hidden = model.normed(model.states(embedded)[-1])
        for row, (clip, one) in enumerate(spoken):
            places = torch.nonzero(sequences.targets[row] >= FIRST_CODE)[:, 0]
            first = rng.randrange(len(places) - FRAMES + 1)
            values = _mean_values(model, hidden[row, places[first : first + FRAMES]], noise)
            values = ((values + 1) / 2 * top).round() * 2 / top - 1
            semantic = codec.book()[one.codes[first : first + FRAMES, 0].to(device()) - FIRST_CODE]
            latents.append(torch.cat((semantic, values), dim=-1))
            sounds.append(torch.from_numpy(sound_of_frames(clip, first, FRAMES)))
    found, expected = codec.decode(torch.stack(latents)), torch.stack(sounds).to(device())
    with torch.autocast(device().type, enabled=False):
        logarithmic, linear = spectral_distance(found, expected, seed)
    features = codec.feature_distance(found, expected)
    loss = logarithmic + LINEAR_WEIGHT * linear + FEATURES_WEIGHT * features
    return {"loss": loss, "log_mel": logarithmic, "linear": linear, "features": features}


def sound_of_frames(clip: Clip, first: int, count: int) -> np.ndarray:
    """What frames of a clip's codes decode to, float32 [count · 1920]: the sound of one frame before."""
    sound = np.zeros(count * FRAME_SAMPLES, np.float32)
    delayed = np.pad(samples_of(clip, SPEECH_RATE), (FRAME_SAMPLES, 0))
    part = delayed[first * FRAME_SAMPLES :][: len(sound)]
    sound[: len(part)] = part
    return sound


def _mean_values(model: SpeechModel, hidden: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """The acoustic values [N, A] in [-1, 1] that the product's steps from noise give for hidden [N, dim]."""
    x = torch.randn((len(hidden), ACOUSTIC_CODES), generator=noise).to(hidden.device)
    for step in range(EULER_STEPS):
        time = torch.full((len(hidden),), step / EULER_STEPS, device=hidden.device)
        found, plain = (model.velocity(x, time, each) for each in (hidden, 0 * hidden))
        x = x + (CFG_ALPHA * found + (1 - CFG_ALPHA) * plain) / EULER_STEPS
    return x.clamp(-1, 1)
