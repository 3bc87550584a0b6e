"""Voxtral-Realtime in mlx-audio (0.6): its own names, and the two convolutions in MLX's layout."""

from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.model.mistral_format import PARAMS, TOKENIZER, read_params
from voxport.model.mlx.model import MlxModel
from voxport.model.voxtral_realtime.modules import AUDIO

ENCODER = f"{AUDIO}.whisper_encoder"
FEED_FORWARD = ("w1", "w2", "w3")
NOT_DECODER = ("multimodal", "model_parallel")


def _config(folder: Path) -> Json:
    """Of params.json: the sections for encoder and decoder under the names of mlx-audio."""
    params = dict(read_params(folder))
    whisper = params["multimodal"]["whisper_model_args"]
    encoder = dict(whisper["encoder_args"]) | dict(whisper["downsample_args"])
    decoder = {name: value for name, value in params.items() if name not in NOT_DECODER}
    return {
        "audio_encoding_args": encoder.pop("audio_encoding_args"),
        "encoder_args": encoder,
        "decoder": decoder,
    }


def _params(content: Json) -> Json:
    """The reverse of `_config`. A section that is missing stays missing, and parsing names it."""
    encoder = dict(content.get("encoder_args", {}))
    factor = encoder.pop("downsample_factor", None)
    if "audio_encoding_args" in content:
        encoder["audio_encoding_args"] = content["audio_encoding_args"]
    whisper = {"encoder_args": encoder, "downsample_args": {"downsample_factor": factor}}
    return dict(content.get("decoder", {})) | {"multimodal": {"whisper_model_args": whisper}}


MLX = MlxModel(
    model_type="voxtral_realtime",
    config=_config,
    renames=(
        (f"{AUDIO}.tok_embeddings.", "decoder.tok_embeddings."),
        ("norm.", "decoder.norm."),
        (f"{ENCODER}.conv_layers.*.conv.", "encoder.conv_layers_*_conv.conv."),
        *(
            (
                f"{ENCODER}.transformer.layers.*.feed_forward.{name}.",
                f"encoder.transformer_layers.*.feed_forward_{name}.",
            )
            for name in FEED_FORWARD
        ),
        (f"{ENCODER}.transformer.layers.*.", "encoder.transformer_layers.*."),
        (f"{ENCODER}.transformer.norm.", "encoder.transformer_norm."),
        (f"{AUDIO}.audio_language_projection.*.", "encoder.audio_language_projection_*."),
        *(
            (f"layers.*.feed_forward.{name}.", f"decoder.layers.*.feed_forward_{name}.")
            for name in FEED_FORWARD
        ),
        ("layers.*.ada_rms_norm_t_cond.0.", "decoder.layers.*.ada_rms_norm_t_cond.ada_down."),
        ("layers.*.ada_rms_norm_t_cond.2.", "decoder.layers.*.ada_rms_norm_t_cond.ada_up."),
        ("layers.*.", "decoder.layers.*."),
    ),
    reordered=(f"{ENCODER}.conv_layers.",),
    integers=(
        "layers.*.attention.*",
        "layers.*.feed_forward.*",
        f"{ENCODER}.transformer.*",
        f"{AUDIO}.audio_language_projection.*",
        f"{AUDIO}.tok_embeddings",
    ),
    copied=(PARAMS, TOKENIZER),
    published_config=PARAMS,
    restored=_params,
    sections=("encoder_args", "decoder"),
)
