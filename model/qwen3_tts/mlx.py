"""Qwen3-TTS in mlx-audio (0.6): the published names and files. The convolutions of the speaker encoder are in
MLX's layout; mlx-audio takes the speech tokenizer as published.
"""

import json
from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.model.mlx.model import MlxModel
from voxport.model.qwen3_tts.config import CODEC_CONFIG, CONFIG
from voxport.model.qwen3_tts.format import (
    AUDIO_PREPROCESSOR,
    CODEC_CONFIGURATION,
    TEXT_PREPROCESSOR,
    TOKENIZER_FILES,
    WEIGHT_FILES,
)
from voxport.model.qwen3_tts.generation_config import GENERATION_CONFIG


def _config(folder: Path) -> Json:
    content: Json = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return content


MLX = MlxModel(
    model_type="qwen3_tts",
    config=_config,
    reordered=("speaker_encoder.",),
    integers=(
        "talker.model.layers.*",
        "talker.codec_head",
        "talker.code_predictor.model.layers.*",
        "talker.code_predictor.lm_head.*",
        "talker.code_predictor.small_to_mtp_projection",
    ),
    weights=WEIGHT_FILES,
    copied=(
        GENERATION_CONFIG,
        CODEC_CONFIG,
        TEXT_PREPROCESSOR,
        AUDIO_PREPROCESSOR,
        CODEC_CONFIGURATION,
        *TOKENIZER_FILES,
    ),
)
