"""Layouts of Qwen3-ASR checkpoints: as published, of transformers (5.23) in repositories whose names end in
`-hf`, and of mlx-audio (0.6). Import no torch.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from voxport.bundle.constants.qwen3_asr import CODES
from voxport.bundle.errors import CheckpointError, UsageError
from voxport.bundle.json_types import Json
from voxport.bundle.qwen_tokenizer import TOKENIZER, TOKENIZER_CONFIG, VOCABULARY, added_tokens
from voxport.model.checkpoint_layout import CheckpointLayout, Renames, WeightFile
from voxport.model.download import read_json, read_object
from voxport.model.mlx.layout import MlxLayout
from voxport.model.qwen3_asr.config import (
    ALIGNER,
    AUDIO_PREPROCESSOR,
    CONFIG,
    CONTROL_TOKENS,
    GENERATION_CONFIG,
    MODEL_TYPE,
    RECOGNISER,
    Qwen3ASRConfig,
    control_ids,
)

WEIGHTS, PROCESSOR = "model.safetensors", "processor_config.json"
TOKENIZER_FILES = (*VOCABULARY, TOKENIZER_CONFIG)
TOWER = "thinker.audio_tower."
NAMES = Renames(
    (
        (f"{TOWER}proj1.", "model.multi_modal_projector.linear_1."),
        (f"{TOWER}proj2.", "model.multi_modal_projector.linear_2."),
        (TOWER, "model.audio_tower."),
        ("thinker.model.", "model.language_model."),
        ("thinker.lm_head.", "lm_head."),
        ("thinker.lm_head.", "score."),  # of an aligner
        ("thinker.lm_head.", "classifier."),  # the same in early files
    )
)
TOKENS = CONTROL_TOKENS | {
    "audio_start_token_id": "<|audio_start|>",
    "audio_end_token_id": "<|audio_end|>",
}
ALIGNER_LANGUAGES = (
    *("Chinese", "English", "Cantonese", "French", "German", "Italian", "Japanese", "Korean", "Portuguese"),
    *("Russian", "Spanish"),
)
STEP_MS = 80  # of an aligner, if processor_config.json has no other


class Qwen3ASRFolder(CheckpointLayout[Qwen3ASRConfig]):
    """A folder with the files `tokenizer` of a tokenizer, all of them."""

    config_class = Qwen3ASRConfig
    has_tokenizer = True
    tokenizer: tuple[str, ...]

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [name for name in self.tokenizer if (folder / name).is_file()]

    def check_tokenizer(self, folder: Path, config: Qwen3ASRConfig | None) -> None:
        super().check_tokenizer(folder, config)
        if missing := [name for name in self.tokenizer if not (folder / name).is_file()]:
            raise CheckpointError(f"{folder / missing[0]}: is missing; fetch all files of one release")


class Qwen3ASRLayout(Qwen3ASRFolder):
    """One folder of recogniser or aligner, as published."""

    marker = f"{CONFIG} with model_type {MODEL_TYPE}"
    tokenizer = TOKENIZER_FILES

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


@dataclass(frozen=True)
class TransformersFile(WeightFile):
    def published(self, name: str) -> str:
        return NAMES.published(super().published(name))


class Qwen3ASRTransformers(Qwen3ASRFolder):
    """Sections of encoder and decoder are at the top, the tokenizer is one file, and the names of languages
    are those of transformers' processor.
    """

    marker = f"{CONFIG} with model_type {MODEL_TYPE} and audio_config"
    tokenizer = (TOKENIZER,)

    def detect(self, folder: Path) -> bool:
        content = read_object(folder / CONFIG)
        return content.get("model_type") == MODEL_TYPE and "audio_config" in content

    def replaces_published(self, folder: Path, weights: Collection[str]) -> bool:
        return self.detect(folder)

    def load_config(self, folder: Path) -> Qwen3ASRConfig:
        return self.parse_config(_published(folder), str(folder / CONFIG))

    def published_documents(self, folder: Path) -> dict[str, Json]:
        raise UsageError(f"{folder}: is in the layout of transformers, which is exported as it is")

    def config_files(self, folder: Path) -> list[str]:
        return [name for name in (CONFIG, GENERATION_CONFIG, PROCESSOR) if (folder / name).is_file()]

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [TransformersFile(folder / WEIGHTS)]


def _published(folder: Path) -> Json:
    """The configuration under the published keys. What is missing is named when it is parsed."""
    content, processor = read_json(folder, CONFIG), read_object(folder / PROCESSOR)
    audio, text = dict(content.get("audio_config") or {}), dict(content.get("text_config") or {})
    rope = text.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        text["rope_theta"] = rope["rope_theta"]
    classes = " ".join(map(str, content.get("architectures") or ()))
    is_aligner = bool(content.get("timestamp_token_id")) and "ConditionalGeneration" not in classes
    found = control_ids(added_tokens([folder / TOKENIZER]), TOKENS)
    thinker = found | {
        "model_type": ALIGNER if is_aligner else RECOGNISER,
        "audio_config": audio,
        "text_config": text,
        "audio_token_id": content.get("audio_token_id"),
    }
    if is_aligner:
        labels = content.get("id2label")
        thinker["classify_num"] = len(labels) if isinstance(labels, dict) else content.get("num_labels")
        text["tie_word_embeddings"] = False
    ends = read_object(folder / GENERATION_CONFIG) or {"eos_token_id": content.get("eos_token_id")}
    return found | {
        "model_type": MODEL_TYPE,
        "support_languages": [*(ALIGNER_LANGUAGES if is_aligner else CODES)],
        "thinker_config": thinker,
        "timestamp_token_id": content.get("timestamp_token_id"),
        "timestamp_segment_time": processor.get("timestamp_segment_time", STEP_MS),
        "generation": ends,
    }


class Qwen3ASRMlx(MlxLayout[Qwen3ASRConfig]):
    """mlx-audio: names without their first part, no head of a recogniser, and convolutions in MLX's
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
