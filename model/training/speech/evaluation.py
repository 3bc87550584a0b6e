"""Speech of the models in training, as clips for the recogniser."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from voxport.model.training.data.clips import Clip
from voxport.model.training.data.sound import SPEECH_RATE
from voxport.model.training.data.tokens import Encoder
from voxport.model.training.loop import device
from voxport.model.training.speech.batches import encode_clips, make_sequence
from voxport.model.training.speech.codec_model import CodecModel
from voxport.model.training.speech.model import SpeechModel
from voxport.model.training.speech.sound_batches import FRAME_SAMPLES
from voxport.model.training.speech.trained import TrainedSpeech
from voxport.model.voxtral_tts.config import END_AUDIO, FIRST_LEVEL

LONGEST_RATIO = 1.5  # of the expected duration: a sentence that is longer runs away
SEED = 0


class Speech(NamedTuple):
    """The sounds; the share of sentences that ended within LONGEST_RATIO; mean duration over the expected
    one.
    """

    clips: list[Clip]
    ended: float
    ratio: float


def _with_sound(clip: Clip, samples: torch.Tensor) -> Clip:
    """The clip with another sound, [n] at SPEECH_RATE."""
    content = (samples.clamp(-1, 1) * 32767).round().to(torch.int16).cpu().numpy().astype(np.int16)
    return Clip(replace(clip.utterance, samples=content), clip.voice, SPEECH_RATE)


@torch.no_grad()
def resynthesise(clips: Sequence[Clip], codec: CodecModel) -> list[Clip]:
    """The clips through encoder, quantiser and decoder."""
    found = []
    for clip, spoken in zip(clips, encode_clips(clips, codec), strict=True):
        samples = codec.decode(codec.dequantise(spoken.codes[None].to(device())))[0]
        found.append(_with_sound(clip, samples))
    return found


@torch.no_grad()
def speak(clips: Sequence[Clip], trained: TrainedSpeech, encoder: Encoder) -> Speech:
    """Speaks the text of each clip with its voice, freely: each frame follows the model's own frames."""
    spoken, ended, ratios = [], 0, []
    noise = torch.Generator().manual_seed(SEED)
    for clip in clips:
        expected = -(-int(clip.seconds * SPEECH_RATE) // FRAME_SAMPLES)
        voice = trained.voices[clip.voice]
        most = int(LONGEST_RATIO * expected)
        codes = _frames(trained.model, encoder.encode(clip.utterance.text), voice, most, noise)
        ended += len(codes) < most
        ratios.append(len(codes) / expected)
        if not len(codes):
            spoken.append(_with_sound(clip, torch.zeros(FRAME_SAMPLES)))
            continue
        samples = trained.codec.decode(trained.codec.dequantise(codes[None].to(device())))[0]
        spoken.append(_with_sound(clip, samples))
    return Speech(spoken, ended / len(clips), round(float(np.mean(ratios)), 3))


def _frames(
    model: SpeechModel, text_ids: Sequence[int], voice: torch.Tensor, most: int, noise: torch.Generator
) -> torch.Tensor:
    """Codes int64 [T, K] until END_AUDIO, at most `most` frames. All positions are computed again for
    each.
    """
    codes = voice[:0]
    size, steps = model.config.audio.semantic_codebook_size, model.config.acoustic.n_decoding_steps
    while len(codes) < most:
        sequence = make_sequence(text_ids, voice, codes)
        ids, all_codes, is_code = (part[None].to(device()) for part in sequence[:3])
        hidden = model.hidden(model.embed(ids, all_codes, is_code))[:, -1]
        logits = model.semantic(hidden)[0, : size + FIRST_LEVEL]
        logits[0] = -torch.inf
        semantic = logits.argmax()
        if semantic == END_AUDIO:
            break
        acoustic = model.sample(hidden, noise, steps)[0] + FIRST_LEVEL
        codes = torch.cat((codes, torch.cat((semantic[None], acoustic))[None].cpu()))
    return codes
