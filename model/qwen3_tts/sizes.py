"""Configurations of synthetic checkpoints: the published ones and smaller ones, each in three variants.

The sizes are `tiny`, `small`, `0.6b` and `1.7b`. A suffix names a variant other than the first one, as in
`tiny-custom-voice`.
"""

from dataclasses import dataclass, field

from voxport.bundle.json_types import Json
from voxport.model.qwen3_tts.config import CONTROL_IDS, TOKENIZER_12_HZ

VARIANTS = ("base", "custom-voice", "voice-design")
CODES = 2048  # of a published code book; ids of the talker's vocabulary behind them are published for it

LANGUAGES = {
    "english": 2050,
    "german": 2053,
    "spanish": 2054,
    "chinese": 2055,
    "japanese": 2058,
    "french": 2061,
    "korean": 2064,
    "russian": 2069,
    "italian": 2070,
    "portuguese": 2071,
}
DIALECT_IDS = {"sichuan_dialect": 2062, "beijing_dialect": 2074}
DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
SPEAKERS = {
    "aiden": 2861,
    "sohee": 2864,
    "ono_anna": 2873,
    "eric": 2875,
    "dylan": 2878,
    "uncle_fu": 3010,
    "ryan": 3061,
    "vivian": 3065,
    "serena": 3066,
}
CONTROLS = {
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
}


@dataclass(frozen=True)
class Size:
    """Differences to the published configuration files, by section.

    specials: id of the first special token of text. codes: entries of a code book.
    """

    talker: Json
    predictor: Json = field(default_factory=dict)
    speaker: Json = field(default_factory=dict)
    decoder: Json = field(default_factory=dict)
    encoder: Json = field(default_factory=dict)
    model_size: str = "0b6"
    specials: int = 151643
    codes: int = CODES
    books: int = 16

    def config(self, variant: str) -> Json:
        """The content of config.json, with that of the speech tokenizer's as `codec`."""
        moved = self.codes - CODES  # smaller code books move all ids behind them
        has_speakers = variant == "custom-voice"
        languages = LANGUAGES | (DIALECT_IDS if has_speakers else {})
        talker = {
            **_BLOCK,
            **_PUBLISHED_TALKER,
            **self.talker,
            **{name: number + moved for name, number in CONTROLS.items()},
            "vocab_size": self.codes + CONTROL_IDS,
            "num_code_groups": self.books,
            "codec_language_id": {name: number + moved for name, number in languages.items()},
            "spk_id": {name: number + moved for name, number in SPEAKERS.items()} if has_speakers else {},
            "spk_is_dialect": {name: DIALECTS.get(name, False) for name in SPEAKERS} if has_speakers else {},
            "code_predictor_config": {
                **_BLOCK,
                **_PUBLISHED_PREDICTOR,
                **self.predictor,
                "vocab_size": self.codes,
                "num_code_groups": self.books,
            },
        }
        speaker = {"enc_dim": talker["hidden_size"], "sample_rate": 24000, **self.speaker}
        return {
            "model_type": "qwen3_tts",
            "tokenizer_type": TOKENIZER_12_HZ,
            "tts_model_size": self.model_size,
            "tts_model_type": variant.replace("-", "_"),
            "im_start_token_id": self.specials + 1,
            "im_end_token_id": self.specials + 2,
            "assistant_token_id": min(77091, self.specials - 1),
            "tts_pad_token_id": self.specials + 28,
            "tts_bos_token_id": self.specials + 29,
            "tts_eos_token_id": self.specials + 30,
            "talker_config": talker,
            **({"speaker_encoder_config": speaker} if variant == "base" else {}),
            "codec": self._codec(),
        }

    def _codec(self) -> Json:
        """The content of the speech tokenizer's config.json."""
        decoder = {
            **_PUBLISHED_DECODER,
            **self.decoder,
            "codebook_size": self.codes,
            "num_quantizers": self.books,
        }
        encoder = {**_PUBLISHED_ENCODER, **self.encoder, "codebook_size": self.codes}
        return {
            "model_type": TOKENIZER_12_HZ,
            "encoder_valid_num_quantizers": self.books,
            "input_sample_rate": 24000,
            "output_sample_rate": 24000,
            "encode_downsample_rate": 1920,
            "decode_upsample_rate": 1920,
            "encoder_config": encoder,
            "decoder_config": decoder,
        }


_BLOCK = {"hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1000000, "attention_bias": False}
_PUBLISHED_TALKER = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "text_vocab_size": 151936,
    "text_hidden_size": 2048,
    "max_position_embeddings": 32768,
}
_PUBLISHED_PREDICTOR = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_PUBLISHED_DECODER = {
    "attention_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000,
    "num_semantic_quantizers": 1,
    "codebook_dim": 512,
    "latent_dim": 1024,
    "decoder_dim": 1536,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}
_PUBLISHED_ENCODER = {
    "codebook_dim": 256,
    "num_quantizers": 32,
    "num_semantic_quantizers": 1,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 64,
    "norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "num_filters": 64,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "residual_kernel_size": 3,
    "compress": 2,
    "upsampling_ratios": [8, 6, 5, 4],
    "audio_channels": 1,
    "num_residual_layers": 1,
    "pad_mode": "constant",
    "use_causal_conv": True,
    "use_conv_shortcut": False,
}

# Inner widths of smaller sizes are multiples of 32, so that groups of 32 weights divide the same linears.
_TINY_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2}
_TINY_BLOCK = _TINY_HEADS | {"hidden_size": 64, "intermediate_size": 128}
_SMALL_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
SIZES = {
    "tiny": Size(
        # wider than the predictor, as in the published 1.7B
        talker=_TINY_HEADS
        | {
            "hidden_size": 96,
            "intermediate_size": 192,
            "text_vocab_size": 1536,
            "text_hidden_size": 128,
        },
        predictor=_TINY_BLOCK,
        speaker={
            "enc_channels": [64, 64, 64, 64, 192],
            "enc_attention_channels": 32,
            "enc_se_channels": 32,
        },
        decoder={
            "codebook_dim": 32,
            "latent_dim": 64,
            "decoder_dim": 64,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 24,
            "sliding_window": 20,
        },
        encoder={
            "codebook_dim": 16,
            "num_quantizers": 8,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "head_dim": 16,
            "num_filters": 4,
        },
        model_size="1b7",
        specials=1400,
        codes=256,
        books=6,
    ),
    # one layer and one stage of the codec: for tests of lowering
    "micro": Size(
        talker=_TINY_HEADS
        | {
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_hidden_layers": 1,
            "text_vocab_size": 1536,
            "text_hidden_size": 128,
        },
        predictor=_TINY_BLOCK | {"num_hidden_layers": 1},
        speaker={
            "enc_channels": [64, 64, 64, 64, 192],
            "enc_attention_channels": 32,
            "enc_se_channels": 32,
        },
        decoder={
            "codebook_dim": 32,
            "latent_dim": 64,
            "decoder_dim": 64,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 24,
            "sliding_window": 20,
            "upsample_rates": [480],
            "upsampling_ratios": [4],
        },
        encoder={
            "codebook_dim": 16,
            "num_quantizers": 8,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "head_dim": 16,
            "num_filters": 4,
        },
        model_size="1b7",
        specials=1400,
        codes=256,
        books=3,
    ),
    "small": Size(
        talker=_SMALL_HEADS
        | {
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "text_vocab_size": 8192,
            "text_hidden_size": 512,
        },
        predictor=_SMALL_HEADS | {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2},
        decoder={"latent_dim": 256, "decoder_dim": 384, "num_hidden_layers": 4},
        encoder={"num_filters": 16, "num_hidden_layers": 4},
        specials=8000,
    ),
    "0.6b": Size(talker={}),
    "1.7b": Size(talker={"hidden_size": 2048, "intermediate_size": 6144}, model_size="1b7"),
}


def size_names() -> tuple[str, ...]:
    """Every size in every variant; those of the first variant have no suffix."""
    return (*SIZES, *(f"{size}-{variant}" for variant in VARIANTS[1:] for size in SIZES))


def config_of(name: str) -> Json:
    """The content of config.json of a name of `size_names`, with the speech tokenizer's as `codec`."""
    size, _, variant = name.partition("-")
    return SIZES[size].config(variant or VARIANTS[0])


# Keys that published configurations have and no program here reads.
_VERSION = {"transformers_version": "4.57.3"}
_BLOCK_KEYS: Json = {"attention_dropout": 0, "initializer_range": 0.02, "use_cache": True}
_BLOCK_KEYS |= {"sliding_window": None, "use_sliding_window": False}
_PREDICTOR_KEYS: Json = {"max_length": 20, "max_position_embeddings": 65536, "max_window_layers": 28}
_PREDICTOR_KEYS |= {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
_PREDICTOR_KEYS |= {"eos_token_id": None, "pad_token_id": None, "repetition_penalty": 1.0}
_CODEC_KEYS = {"attention_dropout": 0.0, "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000}
_ENCODER_KEYS: Json = {
    "_frame_rate": 12.5,
    "sampling_rate": 24000,
    "hidden_act": "gelu",
    "sliding_window": 250,
}
_ENCODER_KEYS |= {"dilation_growth_rate": 2, "initializer_range": 0.02, "trim_right_ratio": 1.0}
_ENCODER_KEYS |= {"attention_bias": False, "use_cache": False, "use_streaming": False}


def with_unread_keys(content: Json) -> Json:
    """A configuration of `config_of` with all keys of the published one."""
    talker, codec = content["talker_config"], content["codec"]
    encoder, decoder = codec["encoder_config"], codec["decoder_config"]
    predictor, half = talker["code_predictor_config"], talker["head_dim"] // 2
    sections = [half - 2 * (half * 5 // 16), half * 5 // 16, half * 5 // 16]
    rope = {"interleaved": True, "mrope_section": sections, "rope_type": "default", "type": "default"}
    talker |= _BLOCK_KEYS | {"model_type": "qwen3_tts_talker", "rope_scaling": rope}
    talker |= {"pad_token_id": talker["codec_pad_id"], "position_id_per_seconds": 13}
    predictor |= _BLOCK_KEYS | _PREDICTOR_KEYS | {"rope_scaling": None}
    predictor["layer_types"] = ["full_attention"] * predictor["num_hidden_layers"]
    predictor["model_type"] = "qwen3_tts_talker_code_predictor"
    encoder |= _CODEC_KEYS | _ENCODER_KEYS | {"num_key_value_heads": encoder["num_attention_heads"]}
    encoder["upsample_groups"] = encoder["hidden_size"]
    decoder |= _CODEC_KEYS | {"semantic_codebook_size": 4096}
    for part in (encoder, decoder):
        part["vector_quantization_hidden_dimension"] = part["codebook_dim"]
    codec |= _VERSION | {"architectures": ["Qwen3TTSTokenizerV2Model"]}
    return content | _VERSION | {"architectures": ["Qwen3TTSForConditionalGeneration"]}
