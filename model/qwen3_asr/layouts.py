"""Layouts of Qwen3-ASR checkpoints. Import no torch."""

from pathlib import Path

from voxport.bundle.errors import CheckpointError
from voxport.bundle.json_types import Json
from voxport.bundle.qwen_tokenizer import VOCABULARY
from voxport.model.checkpoint_layout import CheckpointLayout, WeightFile
from voxport.model.download import read_json, read_object
from voxport.model.qwen3_asr.config import CONFIG, GENERATION_CONFIG, Qwen3ASRConfig

WEIGHTS = "model.safetensors"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (*VOCABULARY, TOKENIZER_CONFIG)
MODEL_TYPE = "qwen3_asr"
CONTROL_TOKENS = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "asr_text_token_id": "<asr_text>",
}


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
            content = content | control_ids(read_object(folder / TOKENIZER_CONFIG))
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


def control_ids(tokenizer_config: Json) -> Json:
    """Ids of the tokens of the prompt that config.json lacks, by their names in the configuration."""
    added = tokenizer_config.get("added_tokens_decoder")
    ids = {str(entry.get("content")): int(each) for each, entry in (added or {}).items() if each.isdecimal()}
    return {name: ids[token] for name, token in CONTROL_TOKENS.items() if token in ids}


LAYOUTS = (Qwen3ASRLayout(),)
