"""Synthetic Qwen3-TTS checkpoints: random weights that make a runner behave as with real ones.

Codes change from frame to frame, the audio is noise of moderate loudness, and a sentence ends after some
seconds.
"""

from math import prod
from pathlib import Path

import numpy as np

from voxport.bundle.json_types import Json
from voxport.model.checkpoint import Shapes
from voxport.model.family import Distribution, Synthetic
from voxport.model.qwen3_tts.config import (
    CODEC_CONFIG,
    CONFIG,
    GENERATION_CONFIG,
    SPEECH_TOKENIZER,
    Qwen3TTSConfig,
)
from voxport.model.qwen3_tts.layouts import (
    AUDIO_PREPROCESSOR,
    CODEC_CONFIGURATION,
    TEXT_PREPROCESSOR,
    WEIGHTS,
)
from voxport.model.qwen3_tts.sizes import config_of, size_names
from voxport.model.synthetic.checkpoint import plain_distribution, scale_for_chance
from voxport.model.synthetic.tokenizer import byte_level_bpe

GENERATION = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "max_new_tokens": 8192,
}
END_CHANCE = 0.08  # the end's chance per frame, if logits were independent normals and the largest one won
AUDIO_GAIN = 0.4  # scales the last convolution: audio of about 0.1 RMS
STAGE_GAIN, RESIDUAL_GAIN = 0.6, 0.2  # keep the codec's values around 1, where sines are smooth
USAGE = 8.0  # mean of cluster_usage, far from zero at a spread of 1
BIAS = 0.1
ACTIVATION_GAIN = 1.7  # gives a linear behind SiLU or GELU outputs of unit variance
CODEC_HEAD = "talker.codec_head.weight"
MERGES = "merges.txt"
ROLES = {"user": 872}  # words of the templates with their published ids, besides `assistant`
ADDED_TOKENS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
    "<|file_sep|> <tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> "
    "<tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
)
ORDINARY = range(14, 26)  # the tokens that are not special
TEXT_PREPROCESSING: Json = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}


def _vocabulary(content: Json) -> tuple[dict[str, int], str]:
    roles = ROLES | {"assistant": content["assistant_token_id"]}
    return byte_level_bpe(content["im_start_token_id"] - 1, roles)


def _tokenizer_config(first: int) -> Json:
    """`first`: id of the first added token, behind the vocabulary."""
    added, off = ADDED_TOKENS.split(), ("lstrip", "normalized", "rstrip", "single_word")
    tokens = {
        str(first + index): {"content": token, "special": index not in ORDINARY} | dict.fromkeys(off, False)
        for index, token in enumerate(added)
    }
    names = ("add_bos_token", "add_prefix_space", "clean_up_tokenization_spaces", "split_special_tokens")
    return dict.fromkeys(names, False) | {
        "added_tokens_decoder": tokens,
        "additional_special_tokens": [each["content"] for each in tokens.values() if each["special"]][1:],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _audio_preprocessing(codec: Json) -> Json:
    """The published package reads it with the codec."""
    return {
        "feature_extractor_type": "EncodecFeatureExtractor",
        "chunk_length_s": None,
        "feature_size": 1,
        "overlap": None,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": codec["input_sample_rate"],
    }


def _last_conv(config: Qwen3TTSConfig) -> str:
    stages = len(config.codec.decoder_config.upsample_rates)
    return f"speech_tokenizer.decoder.decoder.{stages + 2}.conv.weight"


class Qwen3TTSSynthetic(Synthetic[Qwen3TTSConfig]):
    version = 3
    sizes = size_names()
    weight_files = {WEIGHTS: "", f"{SPEECH_TOKENIZER}/{WEIGHTS}": f"{SPEECH_TOKENIZER}."}
    float32_files = (f"{SPEECH_TOKENIZER}/{WEIGHTS}",)
    metadata = {"format": "pt"}

    def documents(self, size: str) -> dict[str, Json]:
        content = config_of(size)
        codec = content.pop("codec")
        return {
            CONFIG: content,
            CODEC_CONFIG: codec,
            GENERATION_CONFIG: GENERATION,
            TEXT_PREPROCESSOR: TEXT_PREPROCESSING,
            AUDIO_PREPROCESSOR: _audio_preprocessing(codec),
            CODEC_CONFIGURATION: {"framework": "pytorch", "task": "feature-extraction", "allow_remote": True},
            "vocab.json": _vocabulary(content)[0],
            "tokenizer_config.json": _tokenizer_config(content["im_start_token_id"] - 1),
        }

    def flags(self, shapes: Shapes) -> Shapes:
        """Each table of the encoder has a flag that training has begun."""
        names = (name.removesuffix("embed_sum") for name in shapes if name.endswith(".codebook.embed_sum"))
        return {f"{name}initialized": (1,) for name in names}

    def write_extra_files(self, folder: Path, size: str, seed: int) -> None:
        (folder / MERGES).write_text(_vocabulary(config_of(size))[1], encoding="utf-8")

    def distribution(self, name: str, shape: tuple[int, ...], config: Qwen3TTSConfig) -> Distribution:
        """Convolutions and linears give outputs of unit variance."""
        books = config.talker_config.num_code_groups
        fixed = {  # mean and standard deviation by the end of the name
            "scale": (0.5, 0.1),
            "gamma": (0.5, 0.1),
            ".alpha": (0.0, 0.1),
            ".beta": (0.0, 0.1),
            "bias": (0.0, BIAS),
            "cluster_usage": (USAGE, 1.0),
            "initialized": (1.0, 0.0),
            "embedding_sum": (0.0, USAGE),
            "embed_sum": (0.0, USAGE),
            "text_embedding.weight": (0.0, 1.0),
            "text_projection.linear_fc2.weight": (0.0, ACTIVATION_GAIN * shape[-1] ** -0.5),
        }
        mean, spread = next(
            (values for end, values in fixed.items() if name.endswith(end)), plain_distribution(name, shape)
        )
        if len(shape) == 3:  # [out, in, kernel], or [in, out, 2 * stride] of a transposed convolution
            is_transposed = ".block.1.conv." in name or (".0.conv.weight" in name and ".upsample." in name)
            spread = STAGE_GAIN * (2 * shape[0]) ** -0.5 if is_transposed else prod(shape[1:]) ** -0.5
        if name == _last_conv(config):
            spread *= AUDIO_GAIN
        elif name == _last_conv(config).replace(".weight", ".bias"):
            spread = 0.0
        elif name.endswith(".conv2.conv.weight"):  # nor the residual units of the codec
            spread *= RESIDUAL_GAIN
        elif "codec_embedding" in name:  # a frame, the sum of a row of each table, is as large as a text row
            spread = books**-0.5
        elif name.endswith(
            ("o_proj.weight", "down_proj.weight")
        ):  # deep layers do not outweigh the new frame
            spread *= (2 * config.talker_config.num_hidden_layers) ** -0.5
        return np.float32(mean), np.float32(spread)

    def adjust(self, name: str, first: int, rows: np.ndarray, seed: int, config: Qwen3TTSConfig) -> None:
        """Makes the end win with END_CHANCE, and the audio centred on zero."""
        if name == _last_conv(config):
            rows -= rows.mean(axis=1, keepdims=True)  # its inputs are mostly positive
        end = config.talker_config.codec_eos_token_id - first
        if name == CODEC_HEAD and 0 <= end < len(rows):
            rows[end] *= scale_for_chance(config.talker_config.code_predictor_config.vocab_size, END_CHANCE)


SYNTHETIC = Qwen3TTSSynthetic()
