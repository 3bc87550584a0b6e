"""Configuration of Voxtral-TTS, read from the published `params.json`."""

from itertools import accumulate
from math import ceil
from operator import mul
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from voxport.bundle.bounds import Codebooks, EulerSteps, SampleRate
from voxport.bundle.constants.voxtral_tts import FIRST_CODE
from voxport.bundle.manifest import Record
from voxport.model.config import (
    BlockArgs,
    Few,
    MistralConfig,
    Positive,
    Section,
    Size,
    TransformerArgs,
    require,
)

EULER_STEPS = 7  # as published, if `params.json` does not say it
TABLE_ROUNDING = 128  # tables are padded to a multiple of this many rows


def _comma_ints(value: Any) -> Any:
    """Parses a list that the published file writes as "2,2,2,2". A plain list is accepted too."""
    if not isinstance(value, str):
        return value
    parts = value.split(",")
    are_numbers = all(part.strip().isdecimal() for part in parts)
    require(are_numbers, f"expected whole numbers separated by commas, found {value!r}")
    return [int(part) for part in parts]


Sizes = Annotated[tuple[Few, ...], BeforeValidator(_comma_ints), Field(min_length=1)]


class AcousticTransformerArgs(TransformerArgs):
    """The flow-matching head. `rope_theta`, `sigma` and `sigma_max` of the published file are inert."""

    use_biases: Literal[False] = False
    input_dim: Size
    n_decoding_steps: EulerSteps = EULER_STEPS


class EncodingArgs(Section):
    sampling_rate: SampleRate = 24000
    frame_rate: Positive = 12.5


class AudioModelArgs(Section):
    """Code books, special ids, and the acoustic head. Sizes exclude the two special codes."""

    semantic_codebook_size: Size
    acoustic_codebook_size: Annotated[int, Field(ge=2, le=1 << 20)]  # levels of a scalar quantiser
    n_acoustic_codebook: Codebooks
    audio_encoding_args: EncodingArgs = EncodingArgs()
    audio_token_id: Annotated[int, Field(ge=0)]
    begin_audio_token_id: Annotated[int, Field(ge=0)]
    input_embedding_concat_type: Literal["sum"] = "sum"
    acoustic_transformer_args: AcousticTransformerArgs

    @model_validator(mode="before")
    @classmethod
    def _older_spelling(cls, data: Any) -> Any:
        """`codebook_sizes` "8192,21,21,…": semantic size, then one size per acoustic code book."""
        if not isinstance(data, dict) or "codebook_sizes" not in data:
            return data
        try:
            sizes = _comma_ints(data["codebook_sizes"])
        except ValueError as error:
            raise ValueError(f"codebook_sizes: {error}") from None
        are_sizes = isinstance(sizes, list) and len(sizes) > 1 and all(size == sizes[1] for size in sizes[1:])
        require(are_sizes, "codebook_sizes: expected a semantic size, then equal acoustic sizes")
        renamed = {
            "semantic_codebook_size": sizes[0],
            "acoustic_codebook_size": sizes[1],
            "n_acoustic_codebook": len(sizes) - 1,
        }
        for key, value in renamed.items():
            given = data.get(key, value)
            require(given == value, f"codebook_sizes gives {key} {value}, yet {key} is {given}")
        return {**data, **renamed}


class AudioTokenizerArgs(BlockArgs):
    """The codec's decoder. The published file holds no encoder, so none is described."""

    channels: Literal[1] = 1
    sampling_rate: SampleRate
    pretransform_patch_size: Size
    patch_proj_kernel_size: Annotated[int, Field(ge=2)]
    semantic_codebook_size: Size
    semantic_dim: Size
    acoustic_codebook_size: Size
    acoustic_dim: Size
    conv_weight_norm: Literal[True] = True
    causal: Literal[True] = True
    attn_sliding_window_size: Size
    half_attn_window_upon_downsampling: bool = True
    qk_norm: Literal[True] = True
    qk_norm_eps: Positive = 1e-6
    norm_eps: Positive = 0.01
    use_biases: Literal[False] = False
    layer_scale: Literal[True] = True
    decoder_transformer_lengths: Sizes = Field(alias="decoder_transformer_lengths_str")
    decoder_convs_kernels: Sizes = Field(alias="decoder_convs_kernels_str")
    decoder_convs_strides: Sizes = Field(alias="decoder_convs_strides_str")
    voice: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _stages(self) -> Self:
        lengths, strides = self.decoder_transformer_lengths, self.decoder_convs_strides
        kernels = self.decoder_convs_kernels
        require(
            len(lengths) == len(kernels) == len(strides),
            "decoder_transformer_lengths_str, decoder_convs_kernels_str and decoder_convs_strides_str "
            f"have {len(lengths)}, {len(kernels)} and {len(strides)} entries; expected as many of each",
        )
        require(
            strides[0] == 1,
            f"decoder_convs_strides_str: the first convolution keeps the rate, found stride {strides[0]}",
        )
        for kernel, stride in zip(kernels[1:], strides[1:], strict=True):
            require(
                stride >= 2 and kernel == 2 * stride,
                f"decoder_convs_kernels_str: an upsampler of stride {stride} needs kernel {2 * stride}, "
                f"found {kernel}",
            )
        require(
            self.n_heads == self.n_kv_heads,
            f"n_kv_heads {self.n_kv_heads}: the codec's attention has as many key heads as query heads "
            f"({self.n_heads})",
        )
        require(
            min(self.windows) >= 1,
            f"attn_sliding_window_size {self.attn_sliding_window_size} is halved below 1 "
            f"by {len(strides) - 1} upsamplers",
        )
        require(
            self.patch_proj_kernel_size <= self.positions_per_frame,
            f"patch_proj_kernel_size {self.patch_proj_kernel_size} reflects more than one frame "
            f"of {self.positions_per_frame}",
        )
        return self

    @property
    def rates(self) -> tuple[int, ...]:
        """Positions per frame in each stage: 1, 2, 4, 8 as published."""
        return tuple(accumulate(self.decoder_convs_strides, mul))

    @property
    def windows(self) -> tuple[int, ...]:
        """Positions before its own that a query of each stage attends to: 2, 4, 8, 16 as published."""
        upsamplers, is_halved = len(self.rates) - 1, self.half_attn_window_upon_downsampling
        return tuple(
            self.attn_sliding_window_size >> (upsamplers - stage if is_halved else 0)
            for stage in range(upsamplers + 1)
        )

    @property
    def context_frames(self) -> tuple[int, ...]:
        """Frames before its own that a query of each stage attends to: 2 as published."""
        return tuple(ceil(window / rate) for window, rate in zip(self.windows, self.rates, strict=True))

    @property
    def positions_per_frame(self) -> int:
        return self.rates[-1]

    @property
    def samples_per_frame(self) -> int:
        return self.positions_per_frame * self.pretransform_patch_size


class Multimodal(Section):
    bos_token_id: Annotated[int, Field(ge=0)] = 1
    audio_model_args: AudioModelArgs
    audio_tokenizer_args: AudioTokenizerArgs


class VoxtralTTSConfig(MistralConfig):
    """All of `params.json` that inference needs; the top level is the backbone."""

    max_seq_len: Size = 65536
    tied_embeddings: Literal[True] = True
    model_type: Literal["voxtral_tts"] = "voxtral_tts"
    multimodal: Multimodal

    @property
    def audio(self) -> AudioModelArgs:
        return self.multimodal.audio_model_args

    @property
    def acoustic(self) -> AcousticTransformerArgs:
        return self.audio.acoustic_transformer_args

    @property
    def codec(self) -> AudioTokenizerArgs:
        return self.multimodal.audio_tokenizer_args

    @property
    def n_codebooks(self) -> int:
        """Codes per frame: one semantic, then the acoustic ones."""
        return 1 + self.audio.n_acoustic_codebook

    @property
    def semantic_rows(self) -> int:
        """Rows of the semantic head: codes and specials, padded."""
        return _round_up(self.audio.semantic_codebook_size + FIRST_CODE)

    @property
    def code_offsets(self) -> tuple[int, ...]:
        """First table row of each code book; cumulative over the unpadded sizes."""
        semantic = self.audio.semantic_codebook_size + FIRST_CODE
        acoustic = self.audio.acoustic_codebook_size + FIRST_CODE
        return (0, *(semantic + acoustic * k for k in range(self.audio.n_acoustic_codebook)))

    @property
    def addressed_code_rows(self) -> int:
        """Rows of the table of code embeddings that some code names: 9022 as published."""
        return self.code_offsets[-1] + self.audio.acoustic_codebook_size + FIRST_CODE

    @property
    def code_table_rows(self) -> int:
        """Rows of the table of code embeddings, padded: 9088 as published."""
        return _round_up(self.addressed_code_rows)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        audio, codec, acoustic = self.audio, self.codec, self.acoustic
        encoding = audio.audio_encoding_args
        require(acoustic.dim % 2 == 0, f"acoustic_transformer_args.dim {acoustic.dim} is odd")
        require(
            acoustic.input_dim == self.dim,
            f"acoustic_transformer_args.input_dim is {acoustic.input_dim}, but dim is {self.dim}",
        )
        for key, other, expected in (
            ("semantic_codebook_size", "audio_model_args", audio.semantic_codebook_size),
            ("acoustic_codebook_size", "audio_model_args", audio.acoustic_codebook_size),
            ("acoustic_dim", "audio_model_args.n_acoustic_codebook", audio.n_acoustic_codebook),
            ("sampling_rate", "audio_encoding_args", encoding.sampling_rate),
        ):
            found = getattr(codec, key)
            require(found == expected, f"audio_tokenizer_args.{key} is {found}, but {other} says {expected}")
        made, given = codec.sampling_rate / codec.samples_per_frame, encoding.frame_rate
        require(
            abs(made - given) <= 1e-6,
            f"audio_encoding_args.frame_rate is {given}; the codec makes {made} frames a second",
        )
        size = self.vocab_size
        for key in ("audio_token_id", "begin_audio_token_id"):
            found = getattr(audio, key)
            require(found < size, f"audio_model_args.{key} {found} lies outside vocab_size {size}")
        return self


class Options(Record):
    """Options of an export. All are written to the manifest. Public implementations differ in the first two.

    first_frame: `prefill` computes frame 0 from the last hidden state of the prompt, as the makers do;
        `audio_token` computes it in an extra step from the embedding of [AUDIO]. With the published weights
        the model may then end the speech at the first frame.
    alibi_slopes: `mistral` is 1 … 1/2^(n-1), `standard` is 1/2 … 1/2^n.
    euler_steps: the default of a checkpoint is its `n_decoding_steps`.
    """

    first_frame: Literal["audio_token", "prefill"] = Field(
        default="prefill", description="hidden state that frame 0 is computed from"
    )
    alibi_slopes: Literal["mistral", "standard"] = Field(
        default="mistral", description="slopes of the codec's attention"
    )
    euler_steps: Few = Field(
        default=EULER_STEPS,
        description="Euler steps of a frame, 1 to 1024; fewer are faster and less accurate",
    )


def _round_up(rows: int) -> int:
    return -(-rows // TABLE_ROUNDING) * TABLE_ROUNDING
