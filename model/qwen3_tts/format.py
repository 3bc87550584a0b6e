"""Files of a Qwen3-TTS checkpoint: two folders, each with a configuration and weights."""

from __future__ import annotations

import json
from pathlib import Path

from bundle.errors import CheckpointError
from model.checkpoint_format import CheckpointFormat, WeightFile
from model.qwen3_tts.config import CODEC_CONFIG, CONFIG, SPEECH_TOKENIZER
from model.qwen3_tts.generation_config import GENERATION_CONFIG

WEIGHTS = "model.safetensors"
WEIGHT_FILES = (("", WEIGHTS), (f"{SPEECH_TOKENIZER}.", f"{SPEECH_TOKENIZER}/{WEIGHTS}"))  # by prefix
VOCABULARY = ("vocab.json", "merges.txt")
TOKENIZER_FILES = (*VOCABULARY, "tokenizer_config.json")
TEXT_PREPROCESSOR = "preprocessor_config.json"
AUDIO_PREPROCESSOR = f"{SPEECH_TOKENIZER}/preprocessor_config.json"
CODEC_CONFIGURATION = f"{SPEECH_TOKENIZER}/configuration.json"
MODEL_TYPE = "qwen3_tts"


class Qwen3TTSFormat(CheckpointFormat):
    """Tensor names of the speech tokenizer begin with `speech_tokenizer.`, as both files have a `decoder`."""

    marker = f"{CONFIG} with model_type {MODEL_TYPE}"
    has_tokenizer = True

    def detect(self, folder: Path) -> bool:
        try:
            content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(content, dict) and content.get("model_type") == MODEL_TYPE

    def config_files(self, folder: Path) -> list[str]:
        return [CONFIG, CODEC_CONFIG, GENERATION_CONFIG]

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / name, prefix) for prefix, name in WEIGHT_FILES]

    def check_tokenizer(self, folder: Path) -> None:
        super().check_tokenizer(folder)
        there = [name for name in VOCABULARY if (folder / name).is_file()]
        if len(there) == 1:
            (missing,) = set(VOCABULARY) - set(there)
            raise CheckpointError(
                f"{folder / missing}: is missing, and {there[0]} is there; fetch both from one release"
            )

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [name for name in TOKENIZER_FILES if (folder / name).is_file()]


FORMAT = Qwen3TTSFormat()
