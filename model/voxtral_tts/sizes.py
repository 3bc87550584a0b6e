"""Configurations of synthetic checkpoints. `sizes.json` has the published params.json, and the differences of
each size.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from voxport.bundle.json_types import Json

_CONTENT = json.loads(Path(__file__).with_name("sizes.json").read_text(encoding="utf-8"))
PUBLISHED: Json = _CONTENT["published"]


@dataclass(frozen=True)
class Size:
    """Differences to the published params.json, by section, and the sizes of the other files.

    voices: rows of each voice.
    num_vocab_tokens: entries of tekken.json, of which the first `vocab_size - 1000` are used.
    """

    backbone: Json
    acoustic: Json
    codec: Json
    semantic_codes: int
    num_vocab_tokens: int
    voices: dict[str, int]

    def params(self) -> Json:
        """The content of params.json."""
        backbone, multimodal = PUBLISHED | self.backbone, PUBLISHED["multimodal"]
        audio, codec = multimodal["audio_model_args"], multimodal["audio_tokenizer_args"]
        acoustic = audio["acoustic_transformer_args"] | self.acoustic | {"input_dim": backbone["dim"]}
        codes = {"semantic_codebook_size": self.semantic_codes}
        voices = {name: index for index, name in enumerate(self.voices)}
        return backbone | {
            "multimodal": multimodal
            | {
                "audio_model_args": audio | codes | {"acoustic_transformer_args": acoustic},
                "audio_tokenizer_args": codec | self.codec | codes | {"voice": voices},
            }
        }


SIZES = {name: Size(**content) for name, content in _CONTENT["sizes"].items()}
