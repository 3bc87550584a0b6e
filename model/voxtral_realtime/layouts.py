"""Layouts of Voxtral-Realtime checkpoints: of Mistral, transformers and mlx-audio. Import no torch."""

from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.model.mistral_layout import PARAMS, TOKENIZER, MistralLayout, read_params
from voxport.model.mlx.layout import MlxLayout, section_of
from voxport.model.voxtral_realtime.config import AUDIO, TOKENS, VoxtralRealtimeConfig, with_schedule
from voxport.model.voxtral_realtime.transformers_layout import VoxtralRealtimeTransformers

ENCODER = f"{AUDIO}.whisper_encoder"
NOT_DECODER = ("multimodal", "model_parallel")


class VoxtralRealtimeLayout(MistralLayout[VoxtralRealtimeConfig]):
    config_class = VoxtralRealtimeConfig

    def load_config(self, folder: Path) -> VoxtralRealtimeConfig:
        return with_schedule(super().load_config(folder), folder)


class VoxtralRealtimeMlx(MlxLayout[VoxtralRealtimeConfig]):
    """mlx-audio (0.6): its own names, and the two convolutions in MLX's layout."""

    has_tokenizer = True
    model_type = "voxtral_realtime"
    renames = (
        (f"{AUDIO}.tok_embeddings.", "decoder.tok_embeddings."),
        ("norm.", "decoder.norm."),
        (f"{ENCODER}.conv_layers.*.conv.", "encoder.conv_layers_*_conv.conv."),
        (f"{ENCODER}.transformer.layers.*.feed_forward.*.", "encoder.transformer_layers.*.feed_forward_*."),
        (f"{ENCODER}.transformer.layers.*.", "encoder.transformer_layers.*."),
        (f"{ENCODER}.transformer.norm.", "encoder.transformer_norm."),
        (f"{AUDIO}.audio_language_projection.*.", "encoder.audio_language_projection_*."),
        ("layers.*.feed_forward.*.", "decoder.layers.*.feed_forward_*."),
        ("layers.*.ada_rms_norm_t_cond.0.", "decoder.layers.*.ada_rms_norm_t_cond.ada_down."),
        ("layers.*.ada_rms_norm_t_cond.2.", "decoder.layers.*.ada_rms_norm_t_cond.ada_up."),
        ("layers.*.", "decoder.layers.*."),
    )
    reordered = (f"{ENCODER}.conv_layers.",)
    integers = (
        "layers.*.attention.*",
        "layers.*.feed_forward.*",
        f"{ENCODER}.transformer.*",
        f"{AUDIO}.audio_language_projection.*",
        f"{AUDIO}.tok_embeddings",
    )
    copied = (PARAMS, TOKENIZER)
    published_config = PARAMS

    def mlx_config(self, folder: Path) -> Json:
        """As in params.json: the sections for encoder and decoder under the names of mlx-audio."""
        params = dict(read_params(folder))
        whisper = params["multimodal"]["whisper_model_args"]
        encoder = dict(whisper["encoder_args"]) | dict(whisper["downsample_args"])
        decoder = {name: value for name, value in params.items() if name not in NOT_DECODER}
        return {
            "audio_encoding_args": encoder.pop("audio_encoding_args"),
            "encoder_args": encoder,
            "decoder": decoder,
        }

    def restored(self, content: Json, source: str) -> Json:
        """A section that is missing stays missing, and parsing names it."""
        encoder = section_of(content, "encoder_args", source)
        factor = encoder.pop("downsample_factor", None)
        if "audio_encoding_args" in content:
            encoder["audio_encoding_args"] = content["audio_encoding_args"]
        whisper = {"encoder_args": encoder, "downsample_args": {"downsample_factor": factor}}
        return section_of(content, "decoder", source) | {"multimodal": {"whisper_model_args": whisper}}


MISTRAL = VoxtralRealtimeLayout("whisper_model_args", tuple(TOKENS.values()))
TRANSFORMERS = VoxtralRealtimeTransformers("whisper_model_args", tuple(TOKENS.values()))
LAYOUTS = (MISTRAL, TRANSFORMERS, VoxtralRealtimeMlx(MISTRAL))
