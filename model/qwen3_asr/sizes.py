"""Configurations of synthetic checkpoints: the published ones and smaller ones, each also as an aligner.

`sizes.json` has config.json of Qwen3-ASR-0.6B, the languages of the aligner, and the differences of each
size. The aligner of a size has the suffix `-aligner`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from voxport.bundle.json_types import Json

_CONTENT = json.loads(Path(__file__).with_name("sizes.json").read_text(encoding="utf-8"))
PUBLISHED: Json = _CONTENT["published"]
FIRST_SPECIAL = 151643  # the published id of the first added token
# Added tokens by their place behind the first one, with their names in the configuration
ADDED = {"im_start_token_id": 1, "im_end_token_id": 2, "asr_text_token_id": 61}
SOUND = {"audio_start_token_id": 26, "audio_end_token_id": 27, "audio_token_id": 33}
TIMESTAMP, ENDS = 62, (0, 2)
ALIGNER = "-aligner"
ALIGNER_LANGUAGES: list[str] = _CONTENT["aligner_languages"]
CLASSES, STEP_MS, MORE_ROWS = 5000, 80, 128  # an aligner's table has so many rows more
ALIGNER_ENCODER = {"d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16}  # published


@dataclass(frozen=True)
class Size:
    """Differences to the published configuration, and the id of the first added token."""

    encoder: Json
    decoder: Json
    first_special: int

    def config(self, is_aligner: bool) -> Json:
        """The content of config.json, with the ids of the tokenizer and `generation`."""
        thinker, moved = PUBLISHED["thinker_config"], self.first_special - FIRST_SPECIAL
        text = thinker["text_config"] | self.decoder
        text["vocab_size"] = thinker["text_config"]["vocab_size"] + moved
        half = text["head_dim"] // 2
        part = half * 5 // 16
        text["rope_scaling"] = text["rope_scaling"] | {"mrope_section": [half - 2 * part, part, part]}
        audio = thinker["audio_config"] | self.encoder
        ids = {name: self.first_special + place for name, place in SOUND.items()}
        content = {
            **PUBLISHED,
            **{name: self.first_special + place for name, place in ADDED.items()},
            "thinker_config": thinker | ids | {"audio_config": audio, "text_config": text},
            "generation": {"eos_token_id": [self.first_special + place for place in ENDS]},
        }
        return self._aligner(content) if is_aligner else content

    def _aligner(self, content: Json) -> Json:
        thinker = content["thinker_config"]
        text = thinker["text_config"]
        size = {"vocab_size": text["vocab_size"] + MORE_ROWS, "max_position_embeddings": 8192}
        audio = thinker["audio_config"]
        if not self.encoder:
            audio = audio | ALIGNER_ENCODER | {"num_hidden_layers": 24, "encoder_ffn_dim": 4096}
        thinker = thinker | {
            "model_type": "qwen3_forced_aligner",
            "classify_num": CLASSES,
            "audio_config": audio,
            "text_config": text | size | {"tie_word_embeddings": False},
        }
        return content | {
            "support_languages": ALIGNER_LANGUAGES,
            "thinker_config": thinker,
            "timestamp_token_id": self.first_special + TIMESTAMP,
            "timestamp_segment_time": STEP_MS,
        }


SIZES = {name: Size(**content) for name, content in _CONTENT["sizes"].items()}


def size_names() -> tuple[str, ...]:
    """Every size as a recogniser, then as an aligner. The published aligner has the size 0.6b."""
    return (*SIZES, *(f"{size}{ALIGNER}" for size in SIZES if size != "1.7b"))


def config_of(name: str) -> Json:
    """The configuration of a name of `size_names`, as `Size.config` has it."""
    return SIZES[name.removesuffix(ALIGNER)].config(name.endswith(ALIGNER))
