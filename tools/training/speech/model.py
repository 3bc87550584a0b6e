"""Backbone and acoustic transformer of Voxtral-TTS for training: batches of sentences, with gradients."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tools.training.data.espeak import PHONEMES, UNKNOWN
from tools.training.data.tokens import BYTES
from tools.training.layers import attend, causal_block, feed_forward, head_scores, initialise, project
from tools.training.speech.batches import NO_WORD
from tools.training.speech.codec_model import SUBFRAMES, CodecModel
from voxport.bundle.json_types import Json
from voxport.bundle.spec import MASKED_SCORE
from voxport.model.layers.block import BlockWeights, parts_of
from voxport.model.layers.rope import RotaryTable, Rotation
from voxport.model.synthetic.tokenizer import SPECIALS
from voxport.model.voxtral_tts.config import VoxtralTTSConfig
from voxport.model.voxtral_tts.modules import TIME_BASE, VoxtralTTSWeights
from voxport.model.voxtral_tts.sizes import Size

LONGEST = 512  # positions of a sentence with its prompt
DROPPED_CONDITIONS = 0.1  # share of frames without the condition, for classifier-free guidance
READING_LAYERS = (1, 2)  # head 0 of these learns to attend to the word that is spoken next
REFERENCE_FRAMES = 12  # the length of a voice's prompt; one row more for the end
VOICES = {"clear_female": "af_heart", "clear_male": "am_michael"}  # published names, and names in clips
ACOUSTIC_CODES = 24
_BLOCK = {"dim": 256, "head_dim": 64, "n_heads": 4, "n_kv_heads": 2}

TRAINED_SIZE = Size(  # 19.7 MB in bfloat16
    backbone=_BLOCK | {"n_layers": 6, "hidden_dim": 768, "vocab_size": SPECIALS + len(BYTES)},
    acoustic=_BLOCK | {"n_layers": 2, "hidden_dim": 512},
    codec={
        "dim": 192,
        "hidden_dim": 384,
        "head_dim": 32,
        "n_heads": 6,
        "n_kv_heads": 6,
        "semantic_dim": 64,
        "acoustic_dim": ACOUSTIC_CODES,
        "decoder_transformer_lengths_str": "1,1,1,3",
    },
    semantic_codes=510,
    num_vocab_tokens=len(BYTES),
    voices={name: REFERENCE_FRAMES + 1 for name in VOICES},
)


class SpeechModel(nn.Module):
    """The published tensors but for the codec, as `weights`, and a classifier of phonemes for training."""

    def __init__(self, config: VoxtralTTSConfig, seed: int = 0):
        super().__init__()
        self.config = config
        self.weights = VoxtralTTSWeights(config)
        del self.weights.audio_tokenizer
        self.phoneme_head = nn.Linear(config.dim, SUBFRAMES * len(PHONEMES))
        initialise(self, seed, config.n_layers)
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, LONGEST)
        self.offsets = nn.Buffer(torch.tensor(config.code_offsets), persistent=False)

    @property
    def semantic_rows(self) -> int:
        """Logits of a semantic code."""
        return len(self.weights.acoustic_transformer.semantic_codebook_output.weight)

    def embed(self, ids: torch.Tensor, codes: torch.Tensor, is_code: torch.Tensor) -> torch.Tensor:
        """ids [B, S], codes [B, S, K], is_code [B, S]: which of both a position has -> [B, S, dim]."""
        tables = self.weights.mm_audio_embeddings
        texts: torch.Tensor = tables["tok_embeddings"](ids)
        table = tables.get_submodule("audio_codebook_embeddings.embeddings")
        return torch.where(is_code[..., None], table(codes + self.offsets).sum(dim=2), texts)

    def states(self, embeddings: torch.Tensor) -> list[torch.Tensor]:
        """embeddings [B, S, dim] -> the input of each block, and the output of the last one [B, S, dim]."""
        found = [embeddings]
        rotation = self._rotation(embeddings)
        for block in parts_of(self.weights.layers, BlockWeights):
            found.append(causal_block(block, found[-1], rotation, embeddings.shape[1]))
        return found

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the last block [..., dim] -> final-normed hidden states [..., dim]."""
        hidden: torch.Tensor = self.weights.norm(x)
        return hidden

    def reading_loss(
        self, states: Sequence[torch.Tensor], word_of: torch.Tensor, reads: torch.Tensor
    ) -> torch.Tensor:
        """Cross-entropy of the attention of one head of `READING_LAYERS` with the word that is spoken next.

        word_of and reads int64 [B, S] as in `batches.PromptedSpeech`. Without this loss, the model
        continues sounds for thousands of steps before it begins to attend to the text.
        """
        is_read = reads != NO_WORD
        is_right = word_of[:, None, :] == reads[:, :, None]
        losses = []
        for layer in READING_LAYERS:
            block = self.weights.layers[layer]
            assert isinstance(block, BlockWeights)
            scores = head_scores(block, states[layer], self._rotation(states[layer]), 0)
            of_word = scores.masked_fill(~is_right, MASKED_SCORE).logsumexp(-1)
            losses.append((scores.logsumexp(-1) - of_word)[is_read].mean())
        return torch.stack(losses).mean()

    def _rotation(self, x: torch.Tensor) -> Rotation:
        rotation: Rotation = self.rotary(torch.arange(x.shape[1], device=x.device)[None])
        return rotation

    def semantic(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [..., dim] -> logits [..., rows] of the next frame's semantic code."""
        logits: torch.Tensor = self.weights.acoustic_transformer.semantic_codebook_output(hidden)
        return logits

    def phoneme_loss(self, hidden: torch.Tensor, phonemes: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of hidden [N, dim] with the phonemes of the next frame's parts [N, 4].

        Codes are many for one phoneme: their own loss says less about how a word is read.
        """
        logits = self.phoneme_head(hidden).float().view(-1, len(PHONEMES))
        return known_cross_entropy(logits, phonemes.flatten())

    def velocity(self, x: torch.Tensor, t: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """x [N, A] at the times t [N], hidden [N, dim] (zeros: no condition) -> velocity [N, A]."""
        head = self.weights.acoustic_transformer
        time = head.time_projection(embed_times(t, self.config.acoustic.dim))
        tokens = torch.stack((head.input_projection(x), time, head.llm_projection(hidden)), dim=1).float()
        for block in parts_of(head.layers, BlockWeights):
            q, k, v = project(block.attention, block.attention_norm(tokens))
            tokens = tokens + block.attention.wo(attend(q, k, v).flatten(-2))
            tokens = tokens + feed_forward(block.feed_forward, block.ffn_norm(tokens))
        velocity: torch.Tensor = head.acoustic_codebook_output(head.norm(tokens[:, 0]))
        return velocity


def embed_times(t: torch.Tensor, dim: int) -> torch.Tensor:
    """t [N] in [0, 1) -> cosines, then sines [N, dim]."""
    half = dim // 2
    frequency = torch.exp(-math.log(TIME_BASE) * torch.arange(half, device=t.device) / half)
    angle = t[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def known_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits [N, classes] with targets [N] that are known, not negative; 0 without."""
    total = F.cross_entropy(logits, targets, reduction="sum", ignore_index=UNKNOWN)
    return total / (targets != UNKNOWN).sum().clamp_min(1)


def trained_params() -> Json:
    """The content of params.json."""
    params = TRAINED_SIZE.params()
    audio = params["multimodal"]["audio_model_args"]
    encoding = audio["audio_encoding_args"] | {"num_codebooks": 1 + ACOUSTIC_CODES}
    audio |= {"n_acoustic_codebook": ACOUSTIC_CODES, "audio_encoding_args": encoding}
    return params


def trained_config() -> VoxtralTTSConfig:
    return VoxtralTTSConfig.model_validate(trained_params())


class TrainedSpeech(NamedTuple):
    """What speaks: the models in training. `voices`: the codes int64 [T, K] of the prompts of `VOICES`."""

    model: SpeechModel
    codec: CodecModel
    voices: Sequence[torch.Tensor]
