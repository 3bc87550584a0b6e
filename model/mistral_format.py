"""Mistral's checkpoint format: `params.json`, `consolidated.safetensors` and `tekken.json` in one folder."""

from pathlib import Path

from model.checkpoint_format import CheckpointFormat, WeightFile

PARAMS = "params.json"
WEIGHTS = "consolidated.safetensors"
TOKENIZER = "tekken.json"


class MistralFormat(CheckpointFormat):
    """A checkpoint is recognised by `section` of `multimodal` in params.json."""

    def __init__(self, section: str):
        self._section = section
        self.marker = f"{PARAMS} with multimodal.{section}"

    def detect(self, folder: Path) -> bool:
        from model.config import read_params

        if not (folder / PARAMS).is_file():
            return False
        params = read_params(folder)
        multimodal = params.get("multimodal") if isinstance(params, dict) else None
        return isinstance(multimodal, dict) and self._section in multimodal

    def config_files(self, folder: Path) -> list[str]:
        return [PARAMS]

    def weight_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / WEIGHTS)]

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [TOKENIZER] if (folder / TOKENIZER).is_file() else []
