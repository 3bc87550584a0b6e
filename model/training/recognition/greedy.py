"""Transcription with the model in training, for its evaluation: greedy, with the published schedule."""

from collections.abc import Sequence

import numpy as np
import torch

from voxport.model.training.data.clips import Clip
from voxport.model.training.data.sound import RECOGNITION_RATE, log_mel, samples_of
from voxport.model.training.data.tokens import Encoder
from voxport.model.training.loop import bfloat16_autocast, device
from voxport.model.training.recognition.model import RecognitionModel
from voxport.model.training.recognition.streams import SCHEDULE, TOKEN_SAMPLES
from voxport.model.voxtral_realtime.config import FLUSH_TOKENS

BATCH = 25  # clips


def transcribe(model: RecognitionModel, clips: Sequence[Clip], encoder: Encoder, delay: int) -> list[str]:
    """The text of each clip at a delay in tokens."""
    sounds = [samples_of(clip, RECOGNITION_RATE) for clip in clips]
    found: list[str] = []
    for first in range(0, len(sounds), BATCH):
        found += _transcribe(model, sounds[first : first + BATCH], encoder, delay)
    return found


@torch.no_grad()
def _transcribe(
    model: RecognitionModel, sounds: Sequence[np.ndarray], encoder: Encoder, delay: int
) -> list[str]:
    """The decoder runs over all positions again for each token: simple, and fast enough for short clips."""
    lengths = [-(-len(sound) // TOKEN_SAMPLES) for sound in sounds]
    prompt = 1 + SCHEDULE.left_pad_tokens + delay
    total = prompt + max(lengths) + FLUSH_TOKENS
    samples = torch.zeros(len(sounds), total * TOKEN_SAMPLES)
    start = SCHEDULE.left_pad_tokens * TOKEN_SAMPLES
    for row, sound in enumerate(sounds):
        samples[row, start : start + len(sound)] = torch.from_numpy(sound)
    fed = torch.full((len(sounds), total), SCHEDULE.pad_id, device=device())
    fed[:, 0] = SCHEDULE.bos_id
    delays = torch.full((len(sounds),), delay, device=device())
    with bfloat16_autocast():
        audio = model.embed(model.encode(log_mel(samples.to(device()))))
        for position in range(prompt, total):
            logits = model.decode(audio[:, :position], fed[:, :position], delays)
            fed[:, position] = logits[:, -1].argmax(-1)
    return [
        encoder.decode([token for token in row[prompt:].tolist() if token >= SCHEDULE.first_text_id])
        for row in fed
    ]
