"""The layout of transformers (5.23): configuration, names, and order of the rows of queries and keys.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxport.bundle.errors import ConfigError, UsageError
from voxport.bundle.json_types import Json
from voxport.model.checkpoint_layout import Renames, TransformersLayout, WeightFile, weight_paths
from voxport.model.download import read_header, read_json, read_object
from voxport.model.mistral_layout import PARAMS, WEIGHTS, MistralLayout
from voxport.model.voxtral_realtime.config import (
    AUDIO,
    PUBLISHED_DELAY_MS,
    VoxtralRealtimeConfig,
    delay_tokens,
    with_schedule,
)
from voxport.model.voxtral_realtime.sizes import PUBLISHED

if TYPE_CHECKING:
    import torch

CONFIG, PROCESSOR, OWN_WEIGHTS = "config.json", "processor_config.json", "model.safetensors"
MODEL_TYPE, CLASS = "voxtral_realtime", "VoxtralRealtime"
SECTIONS = ("audio_config", "text_config")  # which mlx-audio has not, with the same `model_type`
EXTRACTOR = "feature_extractor"  # section of PROCESSOR
ENCODER_ARGS = "multimodal.whisper_model_args.encoder_args"
FRONT_END = f"{ENCODER_ARGS}.audio_encoding_args"
STACK = {  # keys of params.json and of both sections of config.json
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "norm_eps": "rms_norm_eps",
    "sliding_window": "sliding_window",
    "rope_theta": "rope_parameters.rope_theta",
}
KEYS = {  # paths of values in params.json, and in the files of transformers
    **{name: f"text_config.{key}" for name, key in STACK.items()},
    "vocab_size": "text_config.vocab_size",
    "model_max_length": "text_config.max_position_embeddings",
    **{f"{ENCODER_ARGS}.{name}": f"audio_config.{key}" for name, key in STACK.items()},
    f"{ENCODER_ARGS}.n_kv_heads": "audio_config.num_attention_heads",
    f"{FRONT_END}.num_mel_bins": "audio_config.num_mel_bins",
    "multimodal.whisper_model_args.downsample_args.downsample_factor": "downsample_factor",
    f"{FRONT_END}.sampling_rate": f"{EXTRACTOR}.sampling_rate",
    f"{FRONT_END}.hop_length": f"{EXTRACTOR}.hop_length",
    f"{FRONT_END}.window_size": f"{EXTRACTOR}.win_length",
    f"{FRONT_END}.global_log_mel_max": f"{EXTRACTOR}.global_log_mel_max",
}
ASSUMED = {  # values that the code has
    "projector_hidden_act": "gelu",
    **{f"{section}.hidden_act": "silu" for section in SECTIONS},
    **{f"{section}.rope_parameters.rope_type": "default" for section in SECTIONS},
}
ENCODER_THETA = 10000.0  # if config.json has none. Other defaults of transformers are the published values
DELAY_WIDTH = 32  # inner width of the delay's linears, which has no key
PAD_ID = 11  # fills batches in transformers

ENCODER, LANGUAGE = f"{AUDIO}.whisper_encoder", "language_model.model."
LAYER = {
    "attention.w*.": "self_attn.*_proj.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
}
ENCODER_LAYER = LAYER | {"attention_norm.": "self_attn_layer_norm.", "ffn_norm.": "final_layer_norm."}
DECODER_LAYER = LAYER | {
    "attention_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "ada_rms_norm_t_cond.0.": "ada_rms_norm.linear1.",
    "ada_rms_norm_t_cond.2.": "ada_rms_norm.linear2.",
}
NAMES = Renames(
    (
        (f"{AUDIO}.tok_embeddings.", f"{LANGUAGE}embed_tokens."),
        ("norm.", f"{LANGUAGE}norm."),
        (f"{ENCODER}.conv_layers.0.conv.", "audio_tower.embedder.conv1."),
        (f"{ENCODER}.conv_layers.1.conv.", "audio_tower.embedder.conv2."),
        (f"{ENCODER}.transformer.norm.", "audio_tower.norm."),
        (f"{AUDIO}.audio_language_projection.0.", "multi_modal_projector.linear_1."),
        (f"{AUDIO}.audio_language_projection.2.", "multi_modal_projector.linear_2."),
        *(
            (f"{ENCODER}.transformer.layers.*.{a}", f"audio_tower.layers.*.{b}")
            for a, b in ENCODER_LAYER.items()
        ),
        *((f"layers.*.{a}", f"{LANGUAGE}layers.*.{b}") for a, b in DECODER_LAYER.items()),
        # a copy of the table of tokens, which most files lack
        *((f"{AUDIO}.tok_embeddings.", head) for head in ("language_model.lm_head.", "lm_head.")),
    )
)
ROTATED = (".attention.wq", ".attention.wk")


@dataclass(frozen=True)
class TransformersFile(WeightFile):
    """Weights with names of transformers or published names. `head_dims`: of encoder and decoder.

    RoPE rotates pairs of rows of each head of queries and keys. Published rows of a pair are neighbours. In
    transformers, the first rows of all pairs precede the second ones.
    """

    head_dims: tuple[int, int] = (2, 2)

    def published(self, name: str) -> str:
        name = super().published(name)
        if name.startswith("model."):  # the names of a state dict
            name = name.removeprefix("model.").replace("language_model.", LANGUAGE, 1)
        return NAMES.published(name)

    def restored(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        published = self.published(name)
        has_pairs = published == super().published(name)
        return tensor if has_pairs else self._swapped(published, tensor, "restored")

    def written(self, published: str) -> str:
        return NAMES.other(published)

    def converted(self, published: str, tensor: torch.Tensor) -> torch.Tensor:
        return self._swapped(published, tensor, "converted")

    def _swapped(self, published: str, tensor: torch.Tensor, way: str) -> torch.Tensor:
        size = self.head_dims[0 if published.startswith(AUDIO) else 1]
        if not published.rpartition(".")[0].endswith(ROTATED) or len(tensor) % size:
            return tensor  # a wrong number of rows is named when shapes are checked
        inner = (2, size // 2) if way == "restored" else (size // 2, 2)
        swapped: torch.Tensor = tensor.unflatten(0, (-1, *inner)).transpose(1, 2).flatten(0, 2)
        return swapped


class VoxtralRealtimeTransformers(
    MistralLayout[VoxtralRealtimeConfig], TransformersLayout[VoxtralRealtimeConfig]
):
    """Weights are model.safetensors or, without that file, consolidated.safetensors."""

    config_class = VoxtralRealtimeConfig

    def detect(self, folder: Path) -> bool:
        content = read_object(folder / CONFIG)
        return content.get("model_type") == MODEL_TYPE and any(name in content for name in SECTIONS)

    def replaces_published(self, folder: Path, weights: Collection[str]) -> bool:
        if not self.detect(folder) or not (folder / PARAMS).is_file():
            return self.detect(folder)
        paths = (weight_paths(folder / name) for name in (WEIGHTS, OWN_WEIGHTS))
        found = [[path for path in each if path.is_file()] for each in paths]
        read = [folder / name for name in weights] or next(filter(None, found), [])
        names = (name for path in read for name in read_header(path))
        own, plain = TransformersFile(folder), WeightFile(folder)
        return any(own.published(name) != plain.published(name) for name in names)

    def config_files(self, folder: Path) -> list[str]:
        return [CONFIG, *([PROCESSOR] if (folder / PROCESSOR).is_file() else [])]

    def load_config(self, folder: Path) -> VoxtralRealtimeConfig:
        return with_schedule(self._parsed(folder), folder)

    def _parsed(self, folder: Path) -> VoxtralRealtimeConfig:
        source = str(folder / CONFIG)
        try:
            return self.parse_config(_params(folder), source)
        except ConfigError as error:  # names keys of params.json
            faults = list(error.faults)
            for published, key in KEYS.items():
                faults = [each.replace(f"{source}: {published}: ", f"{source}: {key}: ") for each in faults]
            raise ConfigError(*faults) from None

    def single_files(self, folder: Path) -> list[WeightFile]:
        own, published = (weight_paths(folder / name)[0].exists() for name in (OWN_WEIGHTS, WEIGHTS))
        file = self.written_file(self._parsed(folder))
        return [replace(file, path=folder / (WEIGHTS if published and not own else OWN_WEIGHTS))]

    def published_documents(self, folder: Path) -> dict[str, Json]:
        return {PARAMS: _params(folder)}

    def written_file(self, config: VoxtralRealtimeConfig) -> WeightFile:
        return TransformersFile(Path(OWN_WEIGHTS), head_dims=(config.encoder.head_dim, config.head_dim))

    def documents(self, folder: Path, config: VoxtralRealtimeConfig, dtype: str) -> dict[str, Json]:
        if (width := config.ada_rms_norm_t_cond_dim) != DELAY_WIDTH:
            raise UsageError(
                f"to transformers: ada_rms_norm_t_cond_dim is {width}, and transformers has {DELAY_WIDTH} "
                "only; convert to another layout",
                field="to",
            )
        source = read_object(folder / CONFIG) if self.detect(folder) else {}
        source.pop("quantization_config", None)  # all weights are floats
        params, schedule = dict(_flat(config.model_dump())), config.schedule
        tokens = {"bos_token_id": schedule.bos_id, "eos_token_id": schedule.eos_id}
        content = _nested(
            dict(_flat(source))
            | {key: params[published] for published, key in KEYS.items()}
            | ASSUMED
            | {f"text_config.{name}": each for name, each in tokens.items()}
            | {
                "architectures": [f"{CLASS}ForConditionalGeneration"],
                "model_type": MODEL_TYPE,
                "audio_config.model_type": f"{MODEL_TYPE}_encoder",
                "text_config.model_type": f"{MODEL_TYPE}_text",
                "text_config.tie_word_embeddings": True,
                "tie_word_embeddings": True,
                "audio_length_per_tok": config.mel_frames_per_token,
                "default_num_delay_tokens": delay_tokens(PUBLISHED_DELAY_MS, config),
                "dtype": dtype,
                f"{EXTRACTOR}.feature_extractor_type": f"{CLASS}FeatureExtractor",
                f"{EXTRACTOR}.feature_size": config.audio.num_mel_bins,
                f"{EXTRACTOR}.n_fft": config.audio.window_size,
            }
        )
        documents = {
            PROCESSOR: {"processor_class": f"{CLASS}Processor", EXTRACTOR: content.pop(EXTRACTOR)},
            "generation_config.json": tokens | {"pad_token_id": PAD_ID},
        }
        kept = {name: read_object(folder / name) or made for name, made in documents.items()}
        return {CONFIG: content} | kept


def _params(folder: Path) -> Json:
    """The content of params.json. Raises CheckpointNotFound or ConfigError."""
    extractor = read_object(folder / PROCESSOR).get(EXTRACTOR)
    found = dict(_flat(read_json(folder, CONFIG) | {EXTRACTOR: extractor}))
    for section in SECTIONS:
        if found.get(section) is not None:
            raise ConfigError(f"{folder / CONFIG}: {section}: {str(found[section])[:60]}, expected an object")
        if f"{section}.rope_theta" in found:  # as older releases have it
            found.setdefault(f"{section}.rope_parameters.rope_theta", found[f"{section}.rope_theta"])
    for key, expected in ASSUMED.items():
        if found.get(key, expected) != expected:
            raise ConfigError(f"{folder / CONFIG}: {key}: {found[key]!r}, expected {expected!r}")
    given = {published: found[key] for published, key in KEYS.items() if key in found}
    return _nested(dict(_flat(PUBLISHED)) | {f"{ENCODER_ARGS}.rope_theta": ENCODER_THETA} | given)


def _flat(content: Json, start: str = "") -> Iterator[tuple[str, Any]]:  # Any: parsed JSON, not yet checked
    """Path and value of each leaf."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", value


def _nested(values: Json) -> Json:
    content: Json = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        inner = content
        for section in sections:
            inner[section] = inner.get(section) or {}
            inner = inner[section]
        inner[name] = value
    return content
