"""Configurations of synthetic checkpoints: the published one and smaller ones."""

from dataclasses import dataclass

from voxport.bundle.json_types import Json

PUBLISHED_VOICES = {
    "casual_female": 214,
    "casual_male": 147,
    "cheerful_female": 132,
    "neutral_female": 218,
    "neutral_male": 169,
    "pt_male": 144,
    "pt_female": 175,
    "nl_male": 138,
    "nl_female": 146,
    "it_male": 168,
    "it_female": 172,
    "fr_male": 97,
    "fr_female": 97,
    "es_male": 208,
    "es_female": 138,
    "de_male": 163,
    "de_female": 147,
    "ar_male": 67,
    "hi_male": 94,
    "hi_female": 86,
}


@dataclass(frozen=True)
class Size:
    """Differences to the published params.json, by section, and the sizes of the other files.

    voices: rows of each voice.
    num_vocab_tokens: entries of tekken.json, of which the first `vocab_size - 1000` are used.
    """

    backbone: Json
    acoustic: Json
    codec: Json
    semantic_codes: int
    num_vocab_tokens: int
    voices: dict[str, int]

    def params(self) -> Json:
        """The content of params.json."""
        codec = self.codec | {
            "semantic_codebook_size": self.semantic_codes,
            "voice": {name: index for index, name in enumerate(self.voices)},
        }
        audio = {
            **_PUBLISHED_AUDIO,
            "semantic_codebook_size": self.semantic_codes,
            "acoustic_transformer_args": _PUBLISHED_ACOUSTIC
            | self.acoustic
            | {"input_dim": self.backbone.get("dim", _PUBLISHED_BACKBONE["dim"])},
        }
        multimodal = {
            "bos_token_id": 1,
            "audio_model_args": audio,
            "audio_tokenizer_args": _PUBLISHED_CODEC | codec,
        }
        return {**_PUBLISHED_BACKBONE, **self.backbone, "multimodal": multimodal}


_PUBLISHED_BACKBONE = {
    "dim": 3072,
    "n_layers": 26,
    "head_dim": 128,
    "hidden_dim": 9216,
    "n_heads": 32,
    "n_kv_heads": 8,
    "rope_theta": 1000000.0,
    "norm_eps": 1e-05,
    "vocab_size": 131072,
    "max_seq_len": 65536,
    "model_type": "voxtral_tts",
    "max_position_embeddings": 128000,
}

_PUBLISHED_ACOUSTIC = {
    "input_dim": 3072,
    "dim": 3072,
    "n_layers": 3,
    "head_dim": 128,
    "hidden_dim": 9216,
    "n_heads": 32,
    "n_kv_heads": 8,
    "use_biases": False,
    "rope_theta": 10000.0,
    "sigma": 1e-05,
    "sigma_max": 1.0,
}

_PUBLISHED_AUDIO = {
    "semantic_codebook_size": 8192,
    "acoustic_codebook_size": 21,
    "n_acoustic_codebook": 36,
    "audio_encoding_args": {
        "codebook_pattern": "parallel",
        "interleave_audio_tokens_per_segment": 8192,
        "interleave_text_tokens_per_segment": 8192,
        "single_trailing_segment": False,
        "num_codebooks": 37,
        "sampling_rate": 24000,
        "frame_rate": 12.5,
    },
    "audio_token_id": 24,
    "begin_audio_token_id": 25,
    "input_embedding_concat_type": "sum",
    "p_uncond": 0.0,
    "text_feature_bugged": False,
    "condition_dropped_token_id": 42,
}

_PUBLISHED_CODEC = {
    "channels": 1,
    "sampling_rate": 24000,
    "pretransform_patch_size": 240,
    "patch_proj_kernel_size": 7,
    "semantic_codebook_size": 8192,
    "semantic_dim": 256,
    "acoustic_codebook_size": 21,
    "acoustic_dim": 36,
    "conv_weight_norm": True,
    "causal": True,
    "attn_sliding_window_size": 16,
    "half_attn_window_upon_downsampling": True,
    "dim": 1024,
    "hidden_dim": 4096,
    "head_dim": 128,
    "n_heads": 8,
    "n_kv_heads": 8,
    "qk_norm_eps": 1e-06,
    "qk_norm": True,
    "use_biases": False,
    "norm_eps": 0.01,
    "layer_scale": True,
    "layer_scale_init": 0.01,
    "decoder_transformer_lengths_str": "2,2,2,2",
    "decoder_convs_kernels_str": "3,4,4,4",
    "decoder_convs_strides_str": "1,2,2,2",
}

# Inner widths of smaller sizes are multiples of 32, so that groups of 32 weights divide the same linears.
_TINY_BLOCK = {"dim": 96, "n_layers": 2, "head_dim": 32, "hidden_dim": 192, "n_heads": 4, "n_kv_heads": 2}
_SMALL_BLOCK = {"dim": 512, "n_layers": 6, "head_dim": 64, "hidden_dim": 1536, "n_heads": 12, "n_kv_heads": 4}

SIZES = {
    "tiny": Size(
        backbone=_TINY_BLOCK | {"vocab_size": 1536},
        acoustic=_TINY_BLOCK,
        codec={
            "dim": 64,
            "hidden_dim": 128,
            "head_dim": 16,
            "n_heads": 4,
            "n_kv_heads": 4,
            "semantic_dim": 28,
            "decoder_transformer_lengths_str": "1,1,1,1",
        },
        semantic_codes=254,
        num_vocab_tokens=600,
        voices={"casual_male": 12, "neutral_female": 17, "fr_male": 9},
    ),
    # one layer and one upsampler of the codec: for tests of lowering
    "micro": Size(
        backbone=_TINY_BLOCK | {"n_layers": 1, "vocab_size": 1536},
        acoustic=_TINY_BLOCK | {"n_layers": 1},
        codec={
            "dim": 64,
            "hidden_dim": 128,
            "head_dim": 16,
            "n_heads": 4,
            "n_kv_heads": 4,
            "semantic_dim": 28,
            "decoder_transformer_lengths_str": "1,1",
            "decoder_convs_kernels_str": "3,16",
            "decoder_convs_strides_str": "1,8",
        },
        semantic_codes=254,
        num_vocab_tokens=600,
        voices={"casual_male": 12, "neutral_female": 17, "fr_male": 9},
    ),
    "small": Size(
        backbone=_SMALL_BLOCK | {"vocab_size": 8192},
        acoustic=_SMALL_BLOCK | {"n_layers": 3},
        codec={
            "dim": 256,
            "hidden_dim": 1024,
            "head_dim": 64,
            "n_heads": 4,
            "n_kv_heads": 4,
            "semantic_dim": 92,
        },
        semantic_codes=2000,
        num_vocab_tokens=8000,
        voices={"casual_male": 47, "neutral_female": 68, "fr_male": 30},
    ),
    "full": Size(
        backbone={},
        acoustic={},
        codec={},
        semantic_codes=8192,
        num_vocab_tokens=150000,
        voices=PUBLISHED_VOICES,
    ),
}
