"""Configuration of Qwen3-TTS, read from the published `config.json` and `speech_tokenizer/config.json`.

The defaults of the official configuration classes belong to no checkpoint, so every key is required.
"""

from math import prod
from typing import Literal, Self

from pydantic import Field, model_validator

from voxport.bundle.bounds import FRAME_RATE, Codebooks, SampleRate
from voxport.bundle.constants.qwen3_tts import Factor, SamplingConstants, TopK, TopP
from voxport.bundle.manifest import Record
from voxport.model.config import Few, Positive, QwenBlockConfig, Section, Size, require

CONFIG = "config.json"
SPEECH_TOKENIZER = "speech_tokenizer"
CODEC_CONFIG = f"{SPEECH_TOKENIZER}/{CONFIG}"
GENERATION_CONFIG = "generation_config.json"

CONTROL_IDS = 1024  # the last ids of the talker's vocabulary, which no frame has
Id = int


class PredictorConfig(QwenBlockConfig):
    """The code predictor: codes 1 to `num_code_groups` - 1 of a frame."""

    vocab_size: Size
    num_code_groups: Codebooks


class TalkerConfig(QwenBlockConfig):
    """The talker: code 0 of a frame. `vocab_size` counts codes and control ids."""

    vocab_size: Size
    num_code_groups: Codebooks
    text_vocab_size: Size
    text_hidden_size: Size
    max_position_embeddings: Size
    codec_pad_id: Id
    codec_bos_id: Id
    codec_eos_token_id: Id
    codec_think_id: Id
    codec_nothink_id: Id
    codec_think_bos_id: Id
    codec_think_eos_id: Id
    codec_language_id: dict[str, Id]
    spk_id: dict[str, Id | tuple[Id]]
    spk_is_dialect: dict[str, Literal[False] | str] = {}
    code_predictor_config: PredictorConfig

    @model_validator(mode="after")
    def _ids_are_in_the_vocabulary(self) -> Self:
        """Control ids are behind the codes. Tuned checkpoints may have speakers anywhere."""
        languages = {f"codec_language_id.{name}": each for name, each in self.codec_language_id.items()}
        speakers = {f"spk_id.{name}": self.speaker_id(name) for name in self.spk_id}
        codes = self.vocab_size - CONTROL_IDS
        require(codes > 0, f"vocab_size {self.vocab_size} leaves no codes beside {CONTROL_IDS} control ids")
        for name, each in (self.control_ids | languages | speakers).items():
            require(0 <= each < self.vocab_size, f"{name} {each} is not below vocab_size {self.vocab_size}")
        for name, each in (self.control_ids | languages).items():
            require(each >= codes, f"{name} {each} is the id of a code; control ids are {codes} and above")
        return self

    @model_validator(mode="after")
    def _names_differ_by_more_than_case(self) -> Self:
        for section in ("codec_language_id", "spk_id", "spk_is_dialect"):
            found: dict[str, str] = {}
            for name in getattr(self, section):
                other = found.setdefault(name.lower(), name)
                require(
                    other == name, f"{section}: {other} and {name} differ only by case; rename one of them"
                )
        return self

    @model_validator(mode="after")
    def _dialects_are_languages(self) -> Self:
        languages = {name.lower() for name in self.codec_language_id}
        dialects = {name.lower(): dialect for name, dialect in self.spk_is_dialect.items()}
        for name in self.spk_id:
            dialect = dialects.get(name.lower())
            require(
                not dialect or dialect.lower() in languages,
                f"spk_is_dialect.{name} {dialect!r} is not in codec_language_id",
            )
        return self

    @model_validator(mode="after")
    def _the_predictor_continues(self) -> Self:
        groups, others = self.num_code_groups, self.code_predictor_config.num_code_groups
        require(groups == others, f"num_code_groups {groups}, but {others} in code_predictor_config")
        return self

    @property
    def control_ids(self) -> dict[str, int]:
        """The ids of `codec_*` by key."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name.startswith("codec_")}
        return {name: value for name, value in values.items() if isinstance(value, int)}

    def speaker_id(self, name: str) -> int:
        """Some conversions write the id as a list of one."""
        found = self.spk_id[name]
        return found if isinstance(found, int) else found[0]


class SpeakerEncoderConfig(Section):
    """The speaker encoder. Published checkpoints name `enc_dim` and `sample_rate` only."""

    enc_dim: Size
    sample_rate: SampleRate
    enc_channels: tuple[Size, Size, Size, Size, Size] = (512, 512, 512, 512, 1536)
    enc_attention_channels: Size = 128
    enc_se_channels: Size = 128
    enc_res2net_scale: Few = 8
    enc_kernel_sizes: tuple[Few, Few, Few, Few, Few] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[Few, Few, Few, Few, Few] = (1, 2, 3, 4, 1)
    mel_dim: Few = 128


class CodecDecoderConfig(QwenBlockConfig):
    """The decoder of the speech tokenizer: codes to samples."""

    codebook_size: Size
    codebook_dim: Size
    num_quantizers: Codebooks
    num_semantic_quantizers: Literal[1]
    latent_dim: Size
    decoder_dim: Size
    upsample_rates: tuple[Few, ...] = Field(min_length=1)
    upsampling_ratios: tuple[Few, ...]
    sliding_window: Size

    @property
    def samples_per_frame(self) -> int:
        return prod(self.upsample_rates) * prod(self.upsampling_ratios)


class CodecEncoderConfig(Section):
    """The encoder of the speech tokenizer: samples to codes, as in Mimi."""

    codebook_dim: Size
    codebook_size: Size
    num_quantizers: Codebooks
    num_semantic_quantizers: Literal[1]
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Few
    num_attention_heads: Few
    head_dim: Size
    norm_eps: Positive
    rope_theta: Positive
    num_filters: Size
    kernel_size: Few
    last_kernel_size: Few
    residual_kernel_size: Few
    compress: Few
    upsampling_ratios: tuple[Few, ...] = Field(min_length=1)
    audio_channels: Literal[1]
    num_residual_layers: Literal[1]
    pad_mode: Literal["constant"]
    use_causal_conv: Literal[True]
    use_conv_shortcut: Literal[False]


class CodecConfig(Section):
    """`speech_tokenizer/config.json`."""

    model_type: Literal["qwen3_tts_tokenizer_12hz"]
    encoder_valid_num_quantizers: Codebooks
    input_sample_rate: SampleRate
    output_sample_rate: SampleRate
    encode_downsample_rate: Size
    decode_upsample_rate: Size
    encoder_config: CodecEncoderConfig
    decoder_config: CodecDecoderConfig

    @model_validator(mode="after")
    def _rates_follow(self) -> Self:
        made = self.decoder_config.samples_per_frame
        require(
            self.decode_upsample_rate == made,
            f"decode_upsample_rate {self.decode_upsample_rate}, but the decoder makes {made}",
        )
        for rate, samples in (
            ("output_sample_rate", "decode_upsample_rate"),
            ("input_sample_rate", "encode_downsample_rate"),
        ):
            found, expected = getattr(self, rate), FRAME_RATE * getattr(self, samples)
            require(
                found == expected, f"{rate} {found}, but {FRAME_RATE} frames of {samples} are {expected:.0f}"
            )
        return self


class GenerationConfig(Section):
    """`generation_config.json`. The published package's defaults apply if the file is missing."""

    do_sample: bool = True
    temperature: Factor = 0.9
    top_k: TopK = 50
    top_p: TopP = 1.0
    repetition_penalty: Factor = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: Factor = 0.9
    subtalker_top_k: TopK = 50
    subtalker_top_p: TopP = 1.0
    max_new_tokens: int = Field(default=2048, ge=2, le=1 << 24)

    @property
    def max_frames(self) -> int:
        """Frames of one text. The last of the tokens gives none."""
        return self.max_new_tokens - 1

    def sampling(self) -> SamplingConstants:
        return SamplingConstants(
            temperature=self.temperature if self.do_sample else 0.0,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            others_temperature=self.subtalker_temperature if self.subtalker_dosample else 0.0,
            others_top_k=self.subtalker_top_k,
            others_top_p=self.subtalker_top_p,
        )


TEXT_IDS = (
    "im_start_token_id",
    "im_end_token_id",
    "assistant_token_id",
    "tts_pad_token_id",
    "tts_bos_token_id",
    "tts_eos_token_id",
)


class Qwen3TTSConfig(Section):
    """A whole checkpoint. `codec` and `generation` are the other configuration files."""

    model_type: Literal["qwen3_tts"]
    tokenizer_type: Literal["qwen3_tts_tokenizer_12hz"]
    tts_model_size: str
    tts_model_type: Literal["base", "custom_voice", "voice_design"]
    im_start_token_id: Id
    im_end_token_id: Id
    assistant_token_id: Id
    tts_pad_token_id: Id
    tts_bos_token_id: Id
    tts_eos_token_id: Id
    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig | None = None
    codec: CodecConfig
    generation: GenerationConfig = GenerationConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        talker, codec = self.talker_config, self.codec
        for name, found in (
            ("encoder_valid_num_quantizers", codec.encoder_valid_num_quantizers),
            ("decoder_config.num_quantizers", codec.decoder_config.num_quantizers),
        ):
            require(
                found == talker.num_code_groups,
                f"{name} {found} of the codec, but num_code_groups {talker.num_code_groups} of the talker",
            )
        for name in TEXT_IDS:
            found = getattr(self, name)
            require(
                0 <= found < talker.text_vocab_size,
                f"{name} {found} is not below text_vocab_size {talker.text_vocab_size}",
            )
        if self.has_encoders:  # a tuned model of another type may have a section of its Base model
            self._check_encoders()
        self._check_codes()
        return self

    def _check_encoders(self) -> None:
        """A Base model makes voices: vectors and codes that the talker takes, from recordings of one rate."""
        speaker, codec = self.speaker_encoder_config, self.codec
        if speaker is None:
            raise ValueError("speaker_encoder_config: a Base model needs it")
        for name, found, expected in (
            ("speaker_encoder_config.enc_dim", speaker.enc_dim, self.talker_config.hidden_size),
            ("speaker_encoder_config.mel_dim", speaker.mel_dim, 128),  # bands that the runtime computes
            ("speaker_encoder_config.sample_rate", speaker.sample_rate, codec.input_sample_rate),
        ):
            require(found == expected, f"{name} {found}, but the model takes {expected}")

    def _check_codes(self) -> None:
        """Each part has an entry for all codes that another one makes. The codec would clamp larger codes."""
        talker, codec = self.talker_config, self.codec
        first = ("talker_config.vocab_size less control ids", talker.vocab_size - CONTROL_IDS)
        others = (
            "talker_config.code_predictor_config.vocab_size",
            talker.code_predictor_config.vocab_size,
        )
        decoder = ("decoder_config.codebook_size of the codec", codec.decoder_config.codebook_size)
        pairs = [(first, decoder), (others, decoder)]
        if self.has_encoders:
            encoder = ("encoder_config.codebook_size of the codec", codec.encoder_config.codebook_size)
            pairs += [(encoder, first), (encoder, others)]
        for (maker, made), (reader, read) in pairs:
            require(made <= read, f"{maker} makes {made} codes, but {reader} has only {read}")

    @property
    def has_encoders(self) -> bool:
        """Whether the model makes voices from recordings. By the type: a tuned checkpoint keeps the section
        of the Base model, without the tensors.
        """
        return self.tts_model_type == "base"


class Options(Record):
    """Options of the export."""

    split: Literal["standard", "six"] = Field(
        "standard",
        description="six: six graphs in the layout of speech-swift's Core ML models, one position at a call, "
        "with caches of 256 rows",
    )

    @property
    def is_split_six(self) -> bool:
        return self.split == "six"
