"""What speaks: the models in training, with the prompts of their voices."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from voxport.model.training.speech.codec_model import CodecModel
from voxport.model.training.speech.model import SpeechModel


class TrainedSpeech(NamedTuple):
    """`voices`: the codes int64 [T, K] of each voice's prompt."""

    model: SpeechModel
    codec: CodecModel
    voices: Sequence[torch.Tensor]
