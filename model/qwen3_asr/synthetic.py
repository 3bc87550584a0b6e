"""Synthetic Qwen3-ASR checkpoints: random weights whose texts depend on the sound and end."""

from pathlib import Path

import numpy as np

from voxport.bundle.json_types import Json
from voxport.bundle.qwen_tokenizer import TOKENIZER_CONFIG
from voxport.model.family import Distribution, Synthetic
from voxport.model.qwen3_asr.config import (
    AUDIO_PREPROCESSOR,
    CONFIG,
    CONTROL_TOKENS,
    GENERATION_CONFIG,
    Qwen3ASRConfig,
)
from voxport.model.qwen3_asr.layouts import WEIGHTS
from voxport.model.qwen3_asr.sizes import ADDED, SOUND, TIMESTAMP, config_of, size_names
from voxport.model.synthetic.checkpoint import plain_distribution, scale_for_chance
from voxport.model.synthetic.tokenizer import byte_level_bpe

MERGES = "merges.txt"
ROLES = {"system": 8948, "user": 872, "assistant": 77091}  # words of the template with their published ids
NAMES = {
    0: "<|endoftext|>",
    ADDED["im_start_token_id"]: "<|im_start|>",
    ADDED["im_end_token_id"]: "<|im_end|>",
}
NAMES |= {SOUND["audio_start_token_id"]: "<|audio_start|>", SOUND["audio_end_token_id"]: "<|audio_end|>"}
NAMES |= {
    SOUND["audio_token_id"]: "<|audio_pad|>",
    ADDED["asr_text_token_id"]: CONTROL_TOKENS["asr_text_token_id"],
}
ORDINARY = (ADDED["asr_text_token_id"], TIMESTAMP)  # places of tokens that are not special
END_CHANCE = 0.02  # the end's chance per token, if logits were independent normals
GELU_GAIN = 1.7  # gives a linear behind a GELU outputs of unit variance
BIAS = 0.1
TABLE = "thinker.model.embed_tokens.weight"
PREPROCESSING: Json = {
    "chunk_length": 30,
    "dither": 0.0,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480_000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "Qwen3ASRProcessor",
    "return_attention_mask": True,
}


def _first(content: Json) -> int:
    return int(content["im_start_token_id"]) - ADDED["im_start_token_id"]


def _vocabulary(content: Json) -> tuple[dict[str, int], str]:
    first = _first(content)
    roles = {word: min(index, first - 1 - place) for place, (word, index) in enumerate(ROLES.items())}
    return byte_level_bpe(first, roles)


def _tokenizer_config(content: Json) -> Json:
    names = dict(NAMES)
    if "timestamp_token_id" in content:
        names[TIMESTAMP] = "<timestamp>"
    tokens = {
        str(_first(content) + place): {
            "content": names.get(place, f"<blank{place}>"),
            "special": place not in ORDINARY,
            **dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False),
        }
        for place in range(max(names) + 1)
    }
    return {
        "added_tokens_decoder": tokens,
        "additional_special_tokens": [each["content"] for each in tokens.values() if each["special"]][1:],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen3ASRProcessor",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


class Qwen3ASRSynthetic(Synthetic[Qwen3ASRConfig]):
    version = 1
    sizes = size_names()
    weight_files = {WEIGHTS: ""}
    metadata = {"format": "pt"}

    def documents(self, size: str) -> dict[str, Json]:
        content = config_of(size)
        written = {name: each for name, each in content.items() if name not in (*ADDED, "generation")}
        generation = content["generation"] | {"do_sample": False}
        return {
            CONFIG: written,
            GENERATION_CONFIG: generation,
            AUDIO_PREPROCESSOR: PREPROCESSING,
            "vocab.json": _vocabulary(content)[0],
            TOKENIZER_CONFIG: _tokenizer_config(content),
        }

    def write_extra_files(self, folder: Path, size: str, seed: int) -> None:
        (folder / MERGES).write_text(_vocabulary(config_of(size))[1], encoding="utf-8")

    def distribution(self, name: str, shape: tuple[int, ...], config: Qwen3ASRConfig) -> Distribution:
        """Convolutions and linears give outputs of unit variance."""
        mean, spread = plain_distribution(name, shape)
        if name.endswith("bias"):
            mean, spread = 0.0, BIAS
        elif ".conv2d" in name:  # [out, in, 3, 3]
            spread = GELU_GAIN * float(np.prod(shape[1:])) ** -0.5
        elif name.endswith(("conv_out.weight", "fc2.weight", "proj2.weight")):
            spread *= GELU_GAIN
        elif name.endswith(("o_proj.weight", "down_proj.weight")):  # keeps deep layers from outweighing rows
            spread *= (2 * config.thinker_config.text_config.num_hidden_layers) ** -0.5
        return np.float32(mean), np.float32(spread)

    def adjust(self, name: str, first: int, rows: np.ndarray, seed: int, config: Qwen3ASRConfig) -> None:
        """Centres rows behind a GELU, whose outputs are mostly positive, and lets the end win at times."""
        if name.endswith(("conv_out.weight", "proj2.weight")) or ".conv2d" in name:
            rows -= rows.mean(axis=1, keepdims=True)
        end = config.generation.eos_token_id[-1] - first
        if name == TABLE and not config.is_aligner and 0 <= end < len(rows):
            rows[end] *= scale_for_chance(config.thinker_config.text_config.vocab_size, END_CHANCE)


SYNTHETIC = Qwen3ASRSynthetic()
