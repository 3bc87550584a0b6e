"""Configuration of Voxtral-Realtime, read from the published `params.json`."""

import json
import logging
from math import ceil
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from voxport.bundle.bounds import HopLength, MelBins, SampleRate, WindowSize
from voxport.bundle.errors import ConfigError
from voxport.bundle.manifest import Record, first_fault
from voxport.model.config import (
    Few,
    MistralConfig,
    Positive,
    Section,
    Size,
    TransformerArgs,
    require,
)
from voxport.model.mistral_layout import PARAMS, TOKENIZER

AUDIO = "mm_streams_embeddings.embedding_module"  # module path of the token table, encoder and adapter
CONV_STRIDE = 2  # the second convolution's; params.json has no key for it
KERNEL = 3
FLUSH_TOKENS = 10  # silence after it, beyond the delay: room for one long word
LOG_MEL_FLOOR = 8.0  # below the maximum, in decades
DELAYS_MS = (*range(80, 1201, 80), 2400)  # that the model was trained for
PUBLISHED_DELAY_MS, LONGEST_DELAY_MS = 480, 2400  # for live audio; for recordings, with fewer wrong words
AUTO = "auto"
log = logging.getLogger(__name__)


class Schedule(Record):
    """Special tokens and the silence before a recording: from `tekken.json`, else the published ones.

    Ids below `first_text_id` are special.
    """

    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = 32
    word_id: int = 33
    first_text_id: int = 1000
    left_pad_tokens: Annotated[int, Field(ge=1, le=256)] = 32


TOKENS = {"bos_id": "<s>", "eos_id": "</s>", "pad_id": "[STREAMING_PAD]", "word_id": "[STREAMING_WORD]"}


class AudioEncodingArgs(Section):
    """The log-mel front end."""

    sampling_rate: SampleRate
    frame_rate: Positive
    num_mel_bins: MelBins
    hop_length: HopLength
    window_size: WindowSize
    chunk_length_s: Literal[None] = None
    streaming_n_left_pad_tokens: Annotated[int, Field(ge=1, le=256)] | None = None
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


class VoxtralRealtimeConfig(MistralConfig):
    """All of `params.json` that inference needs; the top level is the decoder."""

    tied_embeddings: Literal[True]
    sliding_window: Size
    model_max_length: Size = 131072
    ada_rms_norm_t_cond: Literal[True]
    ada_rms_norm_t_cond_dim: Size
    multimodal: Multimodal
    schedule: Schedule = Schedule()

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
        return self


class Options(Record):
    """Options of an export. Both options are written to the manifest.

    streaming: whether the bundle also transcribes live audio (`encode_chunk`).
    delay_ms: how far text is behind audio, in multiples of 80 ms; several are separated by commas. Live audio
        takes the first by default, a recording the last.
    """

    streaming: bool = Field(default=False, description="add a component for live audio")
    delay_ms: str = Field(
        default=AUTO,
        description="delay of text after audio: multiples of 80 ms up to 1200, or 2400; several with commas; "
        f"{AUTO} is {LONGEST_DELAY_MS}, with streaming {PUBLISHED_DELAY_MS},{LONGEST_DELAY_MS}",
        validate_default=True,
    )

    @field_validator("delay_ms")
    @classmethod
    def _are_delays(cls, text: str, info: ValidationInfo) -> str:
        if text == AUTO:
            live = f"{PUBLISHED_DELAY_MS}," if info.data.get("streaming") else ""
            return f"{live}{LONGEST_DELAY_MS}"
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


def with_schedule(config: VoxtralRealtimeConfig, checkpoint: Path) -> VoxtralRealtimeConfig:
    """The configuration with the schedule of `checkpoint/tekken.json`. Raises ConfigError."""
    schedule = _schedule(checkpoint / TOKENIZER)
    pads = config.audio.streaming_n_left_pad_tokens
    if pads not in (None, schedule.left_pad_tokens):
        raise ConfigError(
            f"{checkpoint / PARAMS}: streaming_n_left_pad_tokens is {pads}, "
            f"expected {schedule.left_pad_tokens}, from {TOKENIZER} or as published if it does not say; "
            "make both files agree"
        )
    for name, token in TOKENS.items():
        found = getattr(schedule, name)
        if not 0 <= found < config.vocab_size:
            raise ConfigError(
                f"{checkpoint / TOKENIZER}: {token} has id {found}; "
                f"expected less than vocab_size, {config.vocab_size}"
            )
    return config.model_copy(update={"schedule": schedule})


def _schedule(path: Path) -> Schedule:
    """The published schedule if the file is missing or broken: its tokenizer is checked elsewhere."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        ids = {token["token_str"]: token["rank"] for token in document["special_tokens"]}
        audio = document.get("audio") or {}
        first_text_id = document["config"]["default_num_special_tokens"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return Schedule()
    missing = [token for token in TOKENS.values() if token not in ids]
    if missing:
        raise ConfigError(
            f"{path}: special_tokens: {missing[0]} is missing; expected the tokenizer of Voxtral-Realtime"
        )
    values = {name: ids[token] for name, token in TOKENS.items()} | {"first_text_id": first_text_id}
    delay = audio.get("transcription_delay_ms", PUBLISHED_DELAY_MS)
    if delay != PUBLISHED_DELAY_MS:
        log.warning(
            "%s: its delay is %s ms; an export takes another unless it is given this one", path, delay
        )
    if "streaming_n_left_pad_tokens" in audio:
        values["left_pad_tokens"] = audio["streaming_n_left_pad_tokens"]
    try:
        return Schedule.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_fault(error)}; expected the published tokenizer") from None
