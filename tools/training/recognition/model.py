"""Voxtral-Realtime for training: encoder and decoder over batches, and the configuration of the tiny
model.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tools.training.data.espeak import PHONEMES
from tools.training.layers import causal_block, head_scores, initialise
from voxport.bundle.json_types import Json
from voxport.bundle.spec import MASKED_SCORE
from voxport.model.layers.block import BlockWeights, parts_of
from voxport.model.layers.rope import UnboundedRotaryTable
from voxport.model.voxtral_realtime.config import CONV_STRIDE, KERNEL, VoxtralRealtimeConfig
from voxport.model.voxtral_realtime.modules import (
    AudioWeights,
    DecoderBlockWeights,
    VoxtralRealtimeWeights,
    embed_delay,
)
from voxport.model.voxtral_realtime.sizes import Size

VOCAB_SIZE = 4096  # with the specials; a token takes 80 ms of the stream, so a word must have few
TRAINED_SIZE = Size(  # 16 MB in bfloat16
    decoder={"dim": 256, "n_layers": 4, "head_dim": 64, "hidden_dim": 768, "n_heads": 4, "n_kv_heads": 2}
    | {"vocab_size": VOCAB_SIZE, "sliding_window": 128, "ada_rms_norm_t_cond_dim": 16},
    encoder={"dim": 256, "n_layers": 4, "head_dim": 32, "hidden_dim": 640, "n_heads": 8, "n_kv_heads": 8}
    | {"sliding_window": 64},
    num_vocab_tokens=VOCAB_SIZE - 1000,
)
LONGEST_DELAY = 30  # tokens


LISTENING_LAYERS = (0, 1)  # head 0 of these learns to attend to the sound that the next token spells
NEAR = 1.5  # positions from the right one that are right as well


class Logits(NamedTuple):
    """tokens [B, T, vocab] and phonemes [B, 4·T, phonemes]. `states`: the input of each block [B, T, dim]."""

    tokens: torch.Tensor
    phonemes: torch.Tensor
    states: list[torch.Tensor]


class RecognitionModel(nn.Module):
    """The published tensors as `weights`, and a classifier of phonemes, which only training uses."""

    def __init__(self, config: VoxtralRealtimeConfig, seed: int = 0):
        super().__init__()
        self.config = config
        self.weights = VoxtralRealtimeWeights(config)
        self.phoneme_head = nn.Linear(config.encoder.dim, len(PHONEMES))
        initialise(self, seed, config.n_layers + config.encoder.n_layers)
        self.encoder_rotary = UnboundedRotaryTable(config.encoder.head_dim, config.encoder.rope_theta)
        self.decoder_rotary = UnboundedRotaryTable(config.head_dim, config.rope_theta)
        delays = torch.stack([embed_delay(delay, config.dim) for delay in range(LONGEST_DELAY + 1)])
        self.delays = nn.Buffer(delays, persistent=False)

    def forward(self, mel: torch.Tensor, tokens: torch.Tensor, delay: torch.Tensor) -> Logits:
        """mel [B, 8·T, M], tokens int64 [B, T] (those fed back), delay int64 [B] in tokens."""
        frames = self.encode(mel)
        logits, states = self.decode(self.embed(frames), tokens, delay)
        return Logits(logits, self.phoneme_head(frames), states)

    def listening_loss(self, states: list[torch.Tensor], heard: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the attention of one head of `LISTENING_LAYERS` with the sound of the next token.

        heard [B, T] as in `streams.StreamBatch`.
        """
        places = torch.arange(heard.shape[1], device=heard.device)
        is_right = (places - heard[..., None]).abs() <= NEAR
        is_heard = is_right.any(-1)
        losses, rotation = [], self.decoder_rotary(places[None])
        for layer in LISTENING_LAYERS:
            block = self.weights.layers[layer]
            assert isinstance(block, DecoderBlockWeights)
            scores = head_scores(block, states[layer], rotation, 0)
            of_right = scores.masked_fill(~is_right, MASKED_SCORE).logsumexp(-1)
            losses.append((scores.logsumexp(-1) - of_right)[is_heard].mean())
        return torch.stack(losses).mean()

    def encode(self, mel: torch.Tensor) -> torch.Tensor:
        """mel [B, 8·T, M] -> final-normed frames [B, 4·T, encoder dim]."""
        encoder, args = self.weights.audio.whisper_encoder, self.config.encoder
        first, second = parts_of(encoder.modules(), nn.Conv1d)
        x = F.gelu(F.conv1d(F.pad(mel.mT, (KERNEL - 1, 0)), first.weight, first.bias))
        padded = F.pad(x, (KERNEL - CONV_STRIDE, 0))
        x = F.gelu(F.conv1d(padded, second.weight, second.bias, stride=CONV_STRIDE)).mT.contiguous()
        rotation = self.encoder_rotary(torch.arange(x.shape[1], device=x.device)[None])
        for block in parts_of(encoder.get_submodule("transformer.layers").children(), BlockWeights):
            x = causal_block(block, x, rotation, args.sliding_window)
        frames: torch.Tensor = encoder.get_submodule("transformer.norm")(x)
        return frames

    def embed(self, frames: torch.Tensor) -> torch.Tensor:
        """frames [B, 4·T, encoder dim] -> audio embeddings [B, T, dim]."""
        stacked = frames.unflatten(1, (-1, self.config.downsample)).flatten(2)
        embeddings: torch.Tensor = self._audio.audio_language_projection(stacked)
        return embeddings

    def decode(
        self, audio: torch.Tensor, tokens: torch.Tensor, delay: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """audio [B, T, dim], tokens and delay of `forward` -> logits [B, T, vocab], and the input of each
        block.
        """
        x = audio + self._audio.tok_embeddings(tokens)
        rotation = self.decoder_rotary(torch.arange(x.shape[1], device=x.device)[None])
        condition, states = self.delays[delay], list[torch.Tensor]()
        for block in parts_of(self.weights.layers, DecoderBlockWeights):
            states.append(x)
            scale = 1 + block.ada_rms_norm_t_cond(condition)[:, None]
            x = causal_block(block, x, rotation, self.config.sliding_window, scale)
        logits: torch.Tensor = self.weights.output(self.weights.norm(x))
        return logits, states

    @property
    def _audio(self) -> AudioWeights:
        return self.weights.audio


def trained_params() -> Json:
    """The content of params.json."""
    return TRAINED_SIZE.params()
