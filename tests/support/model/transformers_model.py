"""Voxtral-Realtime of transformers with random weights, the same weights as published, and ours."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from voxport.bundle.constants.voxtral_realtime import RealtimeConstants
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.model.voxtral_realtime.sizes import Size
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder

BAR = 2e-5  # of the largest value: two orders of float sums through four layers
P = "mm_streams_embeddings.embedding_module."
ROPE = {"rope_type": "default", "rope_theta": 1e6}
MELS, WINDOWS = 128, (12, 10)


@dataclass(frozen=True)
class Sizes:
    """The varied sizes: windows, heads, the delay in tokens, the number of samples."""

    encoder_window: int = WINDOWS[0]
    decoder_window: int = WINDOWS[1]
    heads: int = 4
    kv_heads: int = 2
    delay: int = 6
    samples: int = 12800
    vocab: int = 64


def build(sizes: Sizes) -> Any:
    """transformers' model with random weights, large enough that an error shows, and norms around 1."""
    from transformers import VoxtralRealtimeConfig, VoxtralRealtimeForConditionalGeneration

    audio = {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
        "num_mel_bins": MELS,
        "sliding_window": sizes.encoder_window,
        "rms_norm_eps": 1e-5,
        "rope_parameters": ROPE,
    }
    text = {
        "vocab_size": sizes.vocab,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": 16,
        "sliding_window": sizes.decoder_window,
        "rms_norm_eps": 1e-5,
        "rope_parameters": ROPE,
        "tie_word_embeddings": True,
    }
    config = VoxtralRealtimeConfig(
        audio_config=audio,
        text_config=text,
        downsample_factor=4,
        audio_length_per_tok=8,
        default_num_delay_tokens=6,
    )
    config._attn_implementation = "eager"
    model: Any = VoxtralRealtimeForConditionalGeneration(config)
    model = model.eval().float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = name.endswith("norm.weight")
            spread = 0.1 if is_norm or name.endswith("bias") else parameter[0].numel() ** -0.5
            parameter.copy_(is_norm * 1.0 + spread * torch.randn(parameter.shape, generator=generator))
    return model


ATTENTION = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo"}
FEED_FORWARD = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
WHOLE_NAMES = {
    "model.audio_tower.norm.weight": f"{P}whisper_encoder.transformer.norm.weight",
    "model.multi_modal_projector.linear_1.weight": f"{P}audio_language_projection.0.weight",
    "model.multi_modal_projector.linear_2.weight": f"{P}audio_language_projection.2.weight",
    "model.language_model.embed_tokens.weight": f"{P}tok_embeddings.weight",
    "model.language_model.norm.weight": "norm.weight",
}


def published(model: Any, sizes: Sizes, folder: Path) -> Path:
    """The same weights in the published format. The head is the table."""
    heads = {
        "audio_tower": {"q_proj": 4, "k_proj": 4},
        "language_model": {"q_proj": sizes.heads, "k_proj": sizes.kv_heads},
    }
    tensors = {}
    for name, value in model.state_dict().items():
        part = name.split(".")
        rotated = heads.get(part[1], {}).get(part[-2]) if "self_attn" in part else None
        if name != "lm_head.weight":
            new = value if rotated is None else interleaved(value, rotated)
            tensors[published_name(name)] = new.contiguous().clone()
    folder.mkdir()
    save_file(tensors, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(params(sizes)))
    return folder


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of each head from half-split to interleaved rotation."""
    found: torch.Tensor = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    return found


def published_name(name: str) -> str:
    """The published name of a tensor of transformers."""
    part = name.split(".")
    if name in WHOLE_NAMES:
        return WHOLE_NAMES[name]
    if name.startswith("model.audio_tower.embedder.conv"):
        return f"{P}whisper_encoder.conv_layers.{int(part[3][-1]) - 1}.conv.{part[-1]}"
    at = part.index("layers")
    base = f"{P}whisper_encoder.transformer." if part[1] == "audio_tower" else ""
    return f"{base}layers.{part[at + 1]}.{name_in_layer(part[at + 2 :])}"


def name_in_layer(part: list[str]) -> str:
    match part:
        case ["self_attn", projection, kind]:
            return f"attention.{ATTENTION[projection]}.{kind}"
        case ["mlp", projection, kind]:
            return f"feed_forward.{FEED_FORWARD[projection]}.{kind}"
        case ["ada_rms_norm", linear, _]:
            return f"ada_rms_norm_t_cond.{0 if linear == 'linear1' else 2}.weight"
        case ["self_attn_layer_norm" | "input_layernorm", _]:
            return "attention_norm.weight"
    return "ffn_norm.weight"


def params(sizes: Sizes) -> Json:
    """Differences to the published params.json."""
    decoder = {
        "dim": 48,
        "n_layers": 2,
        "head_dim": 16,
        "hidden_dim": 96,
        "n_heads": sizes.heads,
        "n_kv_heads": sizes.kv_heads,
        "vocab_size": sizes.vocab,
        "sliding_window": sizes.decoder_window,
    }
    encoder = {"dim": 32, "n_layers": 2, "head_dim": 8, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 4}
    return Size(decoder, encoder | {"sliding_window": sizes.encoder_window}, num_vocab_tokens=0).params()


class Ours:
    """Eager, from the published format."""

    def __init__(self, folder: Path, delay: int, **more: Any) -> None:
        source = Source(folder)
        request = ExportRequest(options={"delay_ms": str(80 * delay), "streaming": True}, **more)
        resolved = resolve(source, request)
        model, constants = Model(resolved, "BSHD"), resolved.constants
        assert isinstance(constants, RealtimeConstants)
        self.constants = constants
        self.engine = EagerEngine(model.components, model.module, "BSHD")


def sound(count: int) -> np.ndarray:
    return (0.1 * np.random.default_rng(0).standard_normal(count)).astype(np.float32)


def assert_equals_transformers(model: Any, folder: Path, sizes: Sizes, *, live: bool = False) -> list[int]:
    """transformers runs one forward pass over all positions on our tokens. Each token must be its argmax."""
    ours = Ours(folder, sizes.delay)
    recorded: dict[str, list[Any]] = {"mel": [], "audio_embeds": [], "logits": []}
    decoder = StreamingDecoder(
        ours.engine.stream(),
        ours.constants,
        DecodeOptions(chunk_tokens=1 if live else None),
        lambda name, values: recorded[name].append(values),
    )
    tokens = [*decoder.feed(sound(sizes.samples)), *decoder.finish()]
    mel = torch.from_numpy(np.concatenate(recorded["mel"]).T)[None]
    length = ours.constants.prompt_length(0)
    ids = torch.tensor([[1] + [32] * (length - 1) + tokens[:-1]])
    with torch.no_grad():
        embeddings = model.model.get_audio_features(input_features=mel).pooler_output[0].numpy()
        whole = model(input_ids=ids, input_features=mel, num_delay_tokens=sizes.delay, use_cache=False)
        logits = whole.logits[0, length - 1 :].numpy()
    for found, expected in (
        (np.concatenate(recorded["audio_embeds"]), embeddings),
        (np.concatenate(recorded["logits"]), logits),
    ):
        assert found.shape == expected.shape and np.abs(expected).max() > 1
        np.testing.assert_allclose(found, expected, atol=BAR * np.abs(expected).max(), rtol=0)
    assert tokens == logits.argmax(-1).tolist()
    return tokens
