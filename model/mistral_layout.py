"""The checkpoint layout of Mistral: `params.json`, `consolidated.safetensors`, `tekken.json` in one folder.

Imports no torch.
"""

from pathlib import Path
from typing import Any, TypeVar

from voxport.bundle.errors import CheckpointError
from voxport.bundle.tekken import load_tekken, special_id
from voxport.model.checkpoint_layout import CheckpointLayout, WeightFile
from voxport.model.config import MistralConfig
from voxport.model.download import read_json

PARAMS = "params.json"
WEIGHTS = "consolidated.safetensors"
TOKENIZER = "tekken.json"
Config = TypeVar("Config", bound=MistralConfig)


class MistralLayout(CheckpointLayout[Config]):
    """A checkpoint is recognised by `section` of `multimodal` in params.json."""

    has_tokenizer = True

    def __init__(self, section: str, control_tokens: tuple[str, ...]):
        """`control_tokens` are the special tokens that the family needs of its tokenizer."""
        self._section, self._control_tokens = section, control_tokens
        self.marker = f"{PARAMS} with multimodal.{section}"

    def detect(self, folder: Path) -> bool:
        if not (folder / PARAMS).is_file():
            return False
        params = read_params(folder)
        multimodal = params.get("multimodal") if isinstance(params, dict) else None
        return isinstance(multimodal, dict) and self._section in multimodal

    def config_files(self, folder: Path) -> list[str]:
        return [PARAMS]

    def load_config(self, folder: Path) -> Config:
        return self.parse_config(read_params(folder), str(folder / PARAMS))

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / WEIGHTS)]

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [TOKENIZER] if (folder / TOKENIZER).is_file() else []

    def check_tokenizer(self, folder: Path, config: Config | None) -> None:
        super().check_tokenizer(folder, config)
        path = folder / TOKENIZER
        if not path.is_file():
            return
        tekken = load_tekken(path)
        ids = {token: special_id(tekken, token, path) for token in self._control_tokens}
        if config is None:
            return
        pairs = [("size of the vocabulary", tekken.n_words, config.vocab_size)]
        pairs += [(f"id of {token}", ids[token], each) for token, each in self.control_ids(config).items()]
        for what, found, expected in pairs:
            if found != expected:
                raise CheckpointError(
                    f"{path}: {what}: {found}, expected {expected} from {self.config_files(folder)[0]}; "
                    "fetch both from one release"
                )

    def control_ids(self, config: Config) -> dict[str, int]:
        """Ids of control tokens that the configuration has."""
        return {}


def read_params(checkpoint: Path) -> Any:
    """The parsed content of `checkpoint/params.json`. Raises CheckpointNotFound or ConfigError."""
    return read_json(checkpoint, PARAMS)
