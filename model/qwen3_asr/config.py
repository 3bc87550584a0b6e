"""Configuration of Qwen3-ASR and its forced aligner, read from the published `config.json`.

The defaults of the official configuration classes belong to no checkpoint, so every key is required.
"""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Record
from voxport.bundle.qwen_tokenizer import AddedToken
from voxport.model.config import Few, QwenBlockConfig, Section, Size, require

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
AUDIO_PREPROCESSOR = "preprocessor_config.json"
CHUNK_FRAMES, CHUNK_ROWS = 100, 13  # log-mel frames that are convolved together, and the rows they give
RECOGNISER, ALIGNER = "qwen3_asr", "qwen3_forced_aligner"  # model types of a thinker
MODEL_TYPE = "qwen3_asr"
CONTROL_TOKENS = {  # whose ids the published config.json lacks
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "asr_text_token_id": "<asr_text>",
}
Id = int


def control_ids(added: Mapping[int, AddedToken], names: Mapping[str, str] = CONTROL_TOKENS) -> Json:
    """Ids of the tokens that `names` has by keys of a configuration, if they are among the added ones."""
    ids = {token.text: index for index, token in added.items()}
    return {name: ids[token] for name, token in names.items() if token in ids}


class EncoderConfig(Section):
    """The audio encoder: convolutions, blocks with bidirectional attention in windows, a projector."""

    num_mel_bins: Literal[128]
    d_model: Size
    encoder_layers: Few
    encoder_attention_heads: Few
    encoder_ffn_dim: Size
    output_dim: Size
    downsample_hidden_size: Size
    n_window: Literal[50]  # half of a chunk; the published code computes rows for this one only
    n_window_infer: Size
    activation_function: Literal["gelu"]
    scale_embedding: Literal[False]

    @model_validator(mode="after")
    def _shapes_divide(self) -> Self:
        width, heads, window = self.d_model, self.encoder_attention_heads, self.n_window_infer
        require(width % heads == 0, f"d_model {width} is not a multiple of encoder_attention_heads {heads}")
        require(width % 2 == 0, f"d_model {width} is odd; positions are sines and cosines")
        require(window % CHUNK_FRAMES == 0, f"n_window_infer {window} is not a multiple of {CHUNK_FRAMES}")
        return self

    @property
    def window_chunks(self) -> int:
        """Chunks whose rows see each other."""
        return self.n_window_infer // CHUNK_FRAMES


class DecoderConfig(QwenBlockConfig):
    """The decoder. Its three counters of positions are equal, so its rotation has one."""

    vocab_size: Size
    max_position_embeddings: Size
    tie_word_embeddings: bool


class ThinkerConfig(Section):
    """Encoder and decoder. `classify_num` is the number of times that an aligner distinguishes."""

    model_type: Literal["qwen3_asr", "qwen3_forced_aligner"]
    audio_config: EncoderConfig
    text_config: DecoderConfig
    audio_token_id: Id
    audio_start_token_id: Id
    audio_end_token_id: Id
    classify_num: Size | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        made, taken = self.audio_config.output_dim, self.text_config.hidden_size
        require(made == taken, f"output_dim {made} of the encoder, but hidden_size {taken} of the decoder")
        for name in ("audio_token_id", "audio_start_token_id", "audio_end_token_id"):
            found, size = getattr(self, name), self.text_config.vocab_size
            require(0 <= found < size, f"{name} {found} is not below vocab_size {size}")
        is_aligner = self.model_type == ALIGNER
        require(bool(self.classify_num) == is_aligner, "classify_num: for forced aligners, and needed there")
        return self


class GenerationConfig(Section):
    """`generation_config.json`: the ids that end a text."""

    eos_token_id: tuple[Id, ...] = Field(min_length=1)


class Qwen3ASRConfig(Section):
    """A whole checkpoint. `generation` is the other file. The timestamp belongs to forced aligners."""

    model_type: Literal["qwen3_asr"]
    support_languages: tuple[str, ...]
    thinker_config: ThinkerConfig
    timestamp_token_id: Id | None = None
    timestamp_segment_time: Size | None = None  # ms
    im_start_token_id: Id  # these come from the tokenizer's files
    im_end_token_id: Id
    asr_text_token_id: Id
    generation: GenerationConfig

    @model_validator(mode="after")
    def _an_aligner_has_times(self) -> Self:
        has_times = self.timestamp_token_id is not None and self.timestamp_segment_time is not None
        require(has_times or not self.is_aligner, "timestamp_token_id and timestamp_segment_time: missing")
        return self

    @property
    def is_aligner(self) -> bool:
        return self.thinker_config.model_type == ALIGNER


class Options(Record):
    """Options of the export."""
