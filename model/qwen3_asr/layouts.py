"""Layouts of Qwen3-ASR checkpoints: as published, of transformers and of mlx-audio. Import no torch."""

from pathlib import Path

from voxport.bundle.errors import CheckpointError
from voxport.bundle.qwen_tokenizer import TOKENIZER_CONFIG, VOCABULARY, added_tokens
from voxport.model.checkpoint_layout import CheckpointLayout, WeightFile
from voxport.model.download import read_json, read_object
from voxport.model.mlx.layout import MlxLayout
from voxport.model.qwen3_asr.config import (
    AUDIO_PREPROCESSOR,
    CONFIG,
    GENERATION_CONFIG,
    MODEL_TYPE,
    Qwen3ASRConfig,
    control_ids,
)
from voxport.model.qwen3_asr.transformers_layout import Qwen3ASRTransformers

WEIGHTS = "model.safetensors"
TOKENIZER_FILES = (*VOCABULARY, TOKENIZER_CONFIG)


class Qwen3ASRLayout(CheckpointLayout[Qwen3ASRConfig]):
    """One folder of recogniser or aligner, as published."""

    config_class = Qwen3ASRConfig
    marker = f"{CONFIG} with model_type {MODEL_TYPE}"
    has_tokenizer = True

    def detect(self, folder: Path) -> bool:
        content = read_object(folder / CONFIG)
        return content.get("model_type") == MODEL_TYPE and "thinker_config" in content

    def load_config(self, folder: Path) -> Qwen3ASRConfig:
        """The ids of control tokens are in the files of the tokenizer only."""
        content = read_json(folder, CONFIG)
        if isinstance(content, dict):
            content = content | control_ids(added_tokens([folder / TOKENIZER_CONFIG]))
            content["generation"] = read_json(folder, GENERATION_CONFIG)
        return self.parse_config(content, str(folder / CONFIG))

    def config_files(self, folder: Path) -> list[str]:
        return [CONFIG, GENERATION_CONFIG]

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / WEIGHTS)]

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [name for name in TOKENIZER_FILES if (folder / name).is_file()]

    def check_tokenizer(self, folder: Path, config: Qwen3ASRConfig | None) -> None:
        super().check_tokenizer(folder, config)
        missing = [name for name in TOKENIZER_FILES if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{folder / missing[0]}: is missing; fetch all files of one release")


class Qwen3ASRMlx(MlxLayout[Qwen3ASRConfig]):
    """mlx-audio (0.6): names without their first part, no head of a recogniser, and convolutions in MLX's
    order of axes. The encoder has floats.
    """

    has_tokenizer = True
    model_type = MODEL_TYPE
    renames = tuple((f"thinker.{part}.", f"{part}.") for part in ("model", "audio_tower", "lm_head"))
    reordered = ("thinker.audio_tower.conv2d",)
    integers = ("thinker.model.layers.*", "thinker.model.embed_tokens")
    copied = (GENERATION_CONFIG, AUDIO_PREPROCESSOR, "chat_template.json", *TOKENIZER_FILES)


PUBLISHED = Qwen3ASRLayout()
LAYOUTS = (PUBLISHED, Qwen3ASRTransformers(), Qwen3ASRMlx(PUBLISHED))
