"""Synthetic Voxtral-Realtime checkpoints: the published shapes and smaller ones.

The audio embedding outweighs that of the previous token, so tokens follow the audio. [STREAMING_PAD] and
[STREAMING_WORD] are as frequent as in speech.
"""

from dataclasses import dataclass

import numpy as np

from voxport.bundle.json_types import Json
from voxport.model.family import Distribution, Synthetic
from voxport.model.mistral_format import PARAMS, TOKENIZER, WEIGHTS
from voxport.model.synthetic.checkpoint import plain_distribution, scale_for_chance
from voxport.model.synthetic.tokenizer import tekken
from voxport.model.voxtral_realtime.config import PUBLISHED_DELAY_MS, Schedule, VoxtralRealtimeConfig
from voxport.model.voxtral_realtime.modules import AUDIO

SCHEDULE = Schedule()
SPECIALS = {
    24: "[AUDIO]",
    25: "[BEGIN_AUDIO]",
    SCHEDULE.pad_id: "[STREAMING_PAD]",
    SCHEDULE.word_id: "[STREAMING_WORD]",
    34: "[REPEAT_AUDIO_TEXT]",
    35: "[TRANSCRIBE]",
}
TOKEN_TABLE = f"{AUDIO}.tok_embeddings.weight"
TOKEN_SIZE = 0.3  # of a token's embedding relative to the audio's
# Probabilities per token if logits were independent normals. In fact each is a sixth to a third of all.
PAD_CHANCE, WORD_CHANCE = 0.06, 0.15
GELU_GAIN = 1.7  # gives a linear behind a GELU outputs of unit variance
BIAS = 0.1
MEL_GAIN = 6.0  # log-mel values of noise differ by a sixth
CENTRED = ("conv_layers.0.conv.weight", "conv_layers.1.conv.weight", "audio_language_projection.2.weight")


@dataclass(frozen=True)
class Size:
    """Differences to the published params.json, by section. `num_vocab_tokens`: entries of tekken.json."""

    decoder: Json
    encoder: Json
    num_vocab_tokens: int

    def params(self) -> Json:
        """The content of params.json."""
        model = {
            "encoder_args": _PUBLISHED_ENCODER | self.encoder,
            "downsample_args": {"downsample_factor": 4},
        }
        return {**_PUBLISHED_DECODER, **self.decoder, "multimodal": {"whisper_model_args": model}}


_PUBLISHED_DECODER = {
    "dim": 3072,
    "n_layers": 26,
    "head_dim": 128,
    "hidden_dim": 9216,
    "n_heads": 32,
    "n_kv_heads": 8,
    "use_biases": False,
    "causal": True,
    "rope_theta": 1000000.0,
    "norm_eps": 1e-05,
    "vocab_size": 131072,
    "model_parallel": 1,
    "tied_embeddings": True,
    "sliding_window": 8192,
    "model_max_length": 131072,
    "ada_rms_norm_t_cond": True,
    "ada_rms_norm_t_cond_dim": 32,
}

_PUBLISHED_ENCODER = {
    "dim": 1280,
    "n_layers": 32,
    "head_dim": 64,
    "hidden_dim": 5120,
    "n_heads": 32,
    "n_kv_heads": 32,
    "vocab_size": 131072,
    "use_biases": True,
    "use_cache": False,
    "rope_theta": 1000000.0,
    "causal": True,
    "norm_eps": 1e-05,
    "pos_embed": "rope",
    "max_source_positions": None,
    "ffn_type": "swiglu",
    "norm_type": "rms_norm",
    "sliding_window": 750,
    "audio_encoding_args": {
        "sampling_rate": 16000,
        "frame_rate": 12.5,
        "num_mel_bins": 128,
        "hop_length": 160,
        "window_size": 400,
        "chunk_length_s": None,
        "global_log_mel_max": 1.5,
        "transcription_format": "streaming",
    },
}

# Smaller sizes have windows that a verification exceeds, and inner widths that are multiples of 32.
SIZES = {
    "tiny": Size(
        decoder={"dim": 96, "n_layers": 2, "head_dim": 32, "hidden_dim": 192, "n_heads": 4, "n_kv_heads": 2}
        | {"vocab_size": 1536, "sliding_window": 256, "ada_rms_norm_t_cond_dim": 8},
        encoder={
            "dim": 64,
            "n_layers": 2,
            "head_dim": 16,
            "hidden_dim": 128,
            "n_heads": 4,
            "n_kv_heads": 4,
            "sliding_window": 40,
        },
        num_vocab_tokens=600,
    ),
    "small": Size(
        decoder={
            "dim": 512,
            "n_layers": 6,
            "head_dim": 64,
            "hidden_dim": 1536,
            "n_heads": 12,
            "n_kv_heads": 4,
            "vocab_size": 8192,
            "sliding_window": 2048,
        },
        encoder={
            "dim": 256,
            "n_layers": 6,
            "head_dim": 32,
            "hidden_dim": 1024,
            "n_heads": 8,
            "n_kv_heads": 8,
        },
        num_vocab_tokens=8000,
    ),
    "full": Size(decoder={}, encoder={}, num_vocab_tokens=150000),
}


def audio_document(params: Json) -> Json:
    """The audio section of the tekken.json that belongs to a params.json."""
    encoding = params["multimodal"]["whisper_model_args"]["encoder_args"]["audio_encoding_args"]
    return {
        "sampling_rate": encoding["sampling_rate"],
        "frame_rate": encoding["frame_rate"],
        "transcription_format": "streaming",
        "transcription_delay_ms": PUBLISHED_DELAY_MS,
        "streaming_n_left_pad_tokens": SCHEDULE.left_pad_tokens,
        "streaming_look_ahead_ms": 2.5,
        "streaming_look_back_ms": 52.5,
        "audio_encoding_config": {
            name: encoding[name] for name in ("num_mel_bins", "hop_length", "window_size")
        },
    }


def _tekken(size: str) -> Json:
    params = SIZES[size].params()
    return tekken(params["vocab_size"], SIZES[size].num_vocab_tokens, SPECIALS, audio_document(params))


def _distribution(name: str, shape: tuple[int, ...], config: VoxtralRealtimeConfig) -> Distribution:
    mean, spread = plain_distribution(name, shape)
    if name.endswith("bias"):
        spread = BIAS
    elif name.endswith("conv.weight"):  # [out, in, kernel]
        spread = (MEL_GAIN if ".0." in name else GELU_GAIN) * float(np.prod(shape[1:])) ** -0.5
    elif name == TOKEN_TABLE:
        spread *= TOKEN_SIZE
    elif name.endswith(("audio_language_projection.2.weight", "t_cond.2.weight")):
        spread *= GELU_GAIN
    elif name.endswith(("wo.weight", "w2.weight")):  # keeps deep layers from outweighing the new input
        spread *= (2 * config.n_layers) ** -0.5
    return np.float32(mean), np.float32(spread)


def _adjust(name: str, first: int, rows: np.ndarray, seed: int, config: VoxtralRealtimeConfig) -> None:
    """Makes tokens change with the audio, and sets the frequency of special tokens.

    Rows of linears behind a log-mel or a GELU are centred: the inputs are mostly positive, and their mean
    would outweigh the differences. [STREAMING_PAD] and [STREAMING_WORD] are as frequent as in speech,
    other special tokens are rare.
    """
    if name.endswith(CENTRED):
        rows -= rows.mean(axis=1, keepdims=True)
    if name != TOKEN_TABLE or first:
        return
    pad = rows[SCHEDULE.pad_id] * scale_for_chance(config.vocab_size, PAD_CHANCE)
    word = rows[SCHEDULE.word_id] * scale_for_chance(config.vocab_size, WORD_CHANCE)
    rows[: SCHEDULE.first_text_id] /= 2
    rows[SCHEDULE.pad_id], rows[SCHEDULE.word_id] = pad, word


SYNTHETIC = Synthetic(
    version=2,
    sizes=tuple(SIZES),
    config=lambda size: SIZES[size].params(),
    documents=lambda size: {PARAMS: SIZES[size].params(), TOKENIZER: _tekken(size)},
    weight_files={WEIGHTS: ""},
    distribution=_distribution,
    adjust=_adjust,
)
