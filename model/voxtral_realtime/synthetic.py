"""Synthetic Voxtral-Realtime checkpoints: the published shapes and smaller ones.

The audio embedding outweighs the previous token's, so tokens follow the audio. [STREAMING_PAD] and
[STREAMING_WORD] are as frequent as in speech.
"""

import numpy as np

from voxport.bundle.json_types import Json
from voxport.model.family import Distribution, Synthetic
from voxport.model.mistral_layout import PARAMS, TOKENIZER, WEIGHTS
from voxport.model.synthetic.checkpoint import plain_distribution, scale_for_chance
from voxport.model.synthetic.tokenizer import tekken
from voxport.model.voxtral_realtime.config import AUDIO, PUBLISHED_DELAY_MS, Schedule, VoxtralRealtimeConfig
from voxport.model.voxtral_realtime.sizes import SIZES

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
TOKEN_SIZE = 0.3  # a token's embedding relative to the audio's
# Probabilities per token if logits were independent normals. In fact each is a sixth to a third of all.
PAD_CHANCE, WORD_CHANCE = 0.06, 0.15
GELU_GAIN = 1.7  # gives a linear behind a GELU outputs of unit variance
BIAS = 0.1
MEL_GAIN = 6.0  # log-mel values of noise differ by a sixth
CENTRED = ("conv_layers.0.conv.weight", "conv_layers.1.conv.weight", "audio_language_projection.2.weight")


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


class VoxtralRealtimeSynthetic(Synthetic[VoxtralRealtimeConfig]):
    version = 2
    sizes = tuple(SIZES)
    weight_files = {WEIGHTS: ""}

    def documents(self, size: str) -> dict[str, Json]:
        return {PARAMS: SIZES[size].params(), TOKENIZER: _tekken(size)}

    def distribution(self, name: str, shape: tuple[int, ...], config: VoxtralRealtimeConfig) -> Distribution:
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

    def adjust(
        self, name: str, first: int, rows: np.ndarray, seed: int, config: VoxtralRealtimeConfig
    ) -> None:
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


SYNTHETIC = VoxtralRealtimeSynthetic()
