"""Configuration of Voxtral-Realtime, read from the published `params.json`."""

import json
import logging
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from bundle.errors import ConfigError
from bundle.manifest import Record
from model.checkpoint_format import PARAMS, TOKENIZER
from model.config import Few, Positive, Section, Size, TransformerArgs, parse_params, read_params, require

CONV_STRIDE = 2  # of the second convolution; params.json has no key for it
KERNEL = 3
LEFT_PAD_TOKENS = 32  # silence before a recording
FLUSH_TOKENS = 10  # silence after it, beyond the delay: room for one long word
BOS_ID, EOS_ID, PAD_ID, WORD_ID = 1, 2, 32, 33
FIRST_TEXT_ID = 1000  # ids below are special
LOG_MEL_FLOOR = 8.0  # below the maximum, in decades
DELAYS_MS = (*range(80, 1201, 80), 2400)  # that the model was trained for
PUBLISHED_DELAY_MS = 480
log = logging.getLogger(__name__)


class AudioEncodingArgs(Section):
    """The log-mel front end."""

    sampling_rate: Size
    frame_rate: Positive
    num_mel_bins: Annotated[int, Field(gt=0, le=1024)]
    hop_length: Size
    window_size: Size
    chunk_length_s: Literal[None] = None
    global_log_mel_max: float = 1.5
    transcription_format: Literal["streaming"] = "streaming"


class EncoderArgs(TransformerArgs):
    """The causal audio encoder.

    Its biases stand where Whisper has them: wq, wv, wo, w2 and the convolutions.
    """

    use_biases: Literal[True]
    use_cache: bool = False
    rope_theta: Positive
    causal: Literal[True]
    pos_embed: Literal["rope"]
    max_source_positions: Literal[None] = None
    ffn_type: Literal["swiglu"]
    norm_type: Literal["rms_norm"]
    sliding_window: Size
    audio_encoding_args: AudioEncodingArgs


class DownsampleArgs(Section):
    downsample_factor: Few


class WhisperModelArgs(Section):
    encoder_args: EncoderArgs
    downsample_args: DownsampleArgs


class Multimodal(Section):
    whisper_model_args: WhisperModelArgs


class VoxtralRealtimeConfig(TransformerArgs):
    """All of `params.json` that inference needs; the top level is the decoder."""

    use_biases: Literal[False] = False
    causal: Literal[True] = True
    model_parallel: Literal[1] = 1
    vocab_size: Size
    rope_theta: Positive
    tied_embeddings: Literal[True]
    sliding_window: Size
    model_max_length: Size = 131072
    ada_rms_norm_t_cond: Literal[True]
    ada_rms_norm_t_cond_dim: Size
    multimodal: Multimodal

    @property
    def encoder(self) -> EncoderArgs:
        return self.multimodal.whisper_model_args.encoder_args

    @property
    def audio(self) -> AudioEncodingArgs:
        return self.encoder.audio_encoding_args

    @property
    def downsample(self) -> int:
        """Encoder frames of one token."""
        return self.multimodal.whisper_model_args.downsample_args.downsample_factor

    @property
    def mel_frames_per_token(self) -> int:
        return CONV_STRIDE * self.downsample

    @property
    def samples_per_token(self) -> int:
        return self.mel_frames_per_token * self.audio.hop_length

    @model_validator(mode="after")
    def _agree(self) -> Self:
        require(self.dim % 2 == 0, f"dim {self.dim} is odd; the delay is embedded as cosines and sines")
        heads, kv_heads = self.encoder.n_heads, self.encoder.n_kv_heads
        require(
            heads == kv_heads,
            f"encoder_args.n_kv_heads {kv_heads}: the encoder has as many key heads as query heads ({heads})",
        )
        made, given = self.audio.sampling_rate / self.samples_per_token, self.audio.frame_rate
        require(
            abs(made - given) <= 1e-6,
            f"audio_encoding_args.frame_rate is {given}; hop and strides make {made} tokens a second",
        )
        require(
            self.vocab_size > WORD_ID,
            f"vocab_size {self.vocab_size}: has no [STREAMING_PAD] and [STREAMING_WORD], "
            f"ids {PAD_ID} and {WORD_ID}",
        )
        return self


class Options(Record):
    """Options of an export. Both options are written to the manifest.

    delay_ms: how far text is behind audio, in multiples of 80 ms; several are separated by commas, the first
        is the default.
    streaming: whether the bundle also transcribes live audio (`encode_chunk`).
    """

    delay_ms: str = Field(
        default=str(PUBLISHED_DELAY_MS),
        description="delay of text after audio: multiples of 80 ms up to 1200, or 2400; several with commas",
    )
    streaming: bool = Field(default=False, description="add a component for live audio")

    @field_validator("delay_ms")
    @classmethod
    def _are_delays(cls, text: str) -> str:
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            is_known = part.isascii() and part.isdecimal() and int(part) in DELAYS_MS
            require(is_known, f"delay {part!r}: expected a multiple of 80 ms up to 1200, or 2400")
        return ",".join(dict.fromkeys(str(int(part)) for part in parts))

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.delay_ms.split(","))

    def delays(self, config: VoxtralRealtimeConfig) -> tuple[int, ...]:
        """The delays in tokens."""
        return tuple(delay_tokens(delay, config) for delay in self.delays_ms)


def delay_tokens(delay_ms: int, config: VoxtralRealtimeConfig) -> int:
    """Tokens of a delay, rounded up as the published tokenizer does: 480 ms are 6 tokens."""
    frames = ceil(delay_ms * config.audio.sampling_rate / 1000 / config.audio.hop_length)
    return ceil(frames / config.mel_frames_per_token)


parse_config = partial(parse_params, VoxtralRealtimeConfig)


def load_config(checkpoint: Path) -> VoxtralRealtimeConfig:
    """Reads `checkpoint/params.json`, and checks the schedule in `tekken.json`.

    Raises CheckpointNotFound or ConfigError.
    """
    config = parse_config(read_params(checkpoint), str(checkpoint / PARAMS))
    schedule = _schedule(checkpoint / TOKENIZER)
    found, delay = (
        schedule.get("streaming_n_left_pad_tokens", LEFT_PAD_TOKENS),
        schedule.get("transcription_delay_ms", PUBLISHED_DELAY_MS),
    )
    if found != LEFT_PAD_TOKENS:
        raise ConfigError(
            f"{checkpoint / TOKENIZER}: audio.streaming_n_left_pad_tokens {found}: "
            f"only {LEFT_PAD_TOKENS} is supported"
        )
    if delay != PUBLISHED_DELAY_MS:
        log.warning(
            "%s: its delay is %s ms; an export takes %d unless it is given another delay",
            checkpoint / TOKENIZER,
            delay,
            PUBLISHED_DELAY_MS,
        )
    return config


def _schedule(tokenizer: Path) -> dict[str, Any]:
    """The section `audio` of tekken.json; empty if the file has none. Its tokenizer is checked elsewhere."""
    try:
        return dict(json.loads(tokenizer.read_text(encoding="utf-8"))["audio"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return {}
