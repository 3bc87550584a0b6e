"""Configurations of synthetic checkpoints. `sizes.json` has the published params.json, and the differences of
each size. Smaller sizes have windows that a verification exceeds, and inner widths that are multiples of 32.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from voxport.bundle.json_types import Json

_CONTENT = json.loads(Path(__file__).with_name("sizes.json").read_text(encoding="utf-8"))
PUBLISHED: Json = _CONTENT["published"]


@dataclass(frozen=True)
class Size:
    """Differences to the published params.json, by section. `num_vocab_tokens`: entries of tekken.json."""

    decoder: Json
    encoder: Json
    num_vocab_tokens: int

    def params(self) -> Json:
        """The content of params.json."""
        model = PUBLISHED["multimodal"]["whisper_model_args"]
        model = model | {"encoder_args": model["encoder_args"] | self.encoder}
        return PUBLISHED | self.decoder | {"multimodal": {"whisper_model_args": model}}


SIZES = {name: Size(**content) for name, content in _CONTENT["sizes"].items()}
