"""Voxtral-TTS in mlx-audio (0.6): names of the backbone as in Hugging Face's Llama, other names as published.

Convolutions of the codec are stored as published: mlx-audio takes their weight norms in that layout.
"""

from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.model.mistral_format import PARAMS, TOKENIZER, read_params
from voxport.model.mlx.model import OWN_KEYS, MlxModel

BACKBONE = "language_model.model.model"
LAYER = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def _config(folder: Path) -> Json:
    """That of params.json, which mlx-audio reads as well."""
    return dict(read_params(folder))


def _params(content: Json) -> Json:
    return {name: value for name, value in content.items() if name not in OWN_KEYS}


MLX = MlxModel(
    model_type="voxtral_tts",
    config=_config,
    renames=(
        *((f"layers.*.{name}.", f"{BACKBONE}.layers.*.{other}.") for name, other in LAYER.items()),
        ("norm.", f"{BACKBONE}.norm."),
        ("mm_audio_embeddings.tok_embeddings.", f"{BACKBONE}.embed_tokens."),
        ("mm_audio_embeddings.audio_codebook_embeddings.", "audio_codebook_embeddings."),
    ),
    integers=("layers.*", "acoustic_transformer.*", "mm_audio_embeddings.tok_embeddings"),
    copied=(PARAMS, TOKENIZER),
    published_config=PARAMS,
    restored=_params,
)
