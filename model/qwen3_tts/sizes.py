"""Configurations of synthetic checkpoints: the published ones and smaller ones, each in three variants.

`sizes.json` has the configuration of 0.6B-CustomVoice, with the one of the speech tokenizer as `codec`, and
the differences of each size. A suffix names a variant other than the first one, as in `tiny-custom-voice`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from voxport.bundle.json_types import Json

VARIANTS = ("base", "custom-voice", "voice-design")
TEXT_IDS = ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")  # behind the vocabulary
_CONTENT = json.loads(Path(__file__).with_name("sizes.json").read_text(encoding="utf-8"))
PUBLISHED: Json = _CONTENT["published"]
TALKER: Json = PUBLISHED["talker_config"]
CODEC: Json = PUBLISHED["codec"]
PREDICTOR = TALKER["code_predictor_config"]
CODES = PREDICTOR["vocab_size"]  # entries of a published code book; the ids behind them are published for it
CONTROL_IDS = [name for name in TALKER if name.startswith("codec_") and isinstance(TALKER[name], int)]


@dataclass(frozen=True)
class Size:
    """Differences to the published configuration files, by section.

    specials: id of the first special token of text. codes: entries of a code book.
    """

    talker: Json
    predictor: Json = field(default_factory=dict)
    speaker: Json = field(default_factory=dict)
    decoder: Json = field(default_factory=dict)
    encoder: Json = field(default_factory=dict)
    model_size: str = "0b6"
    specials: int = 151643
    codes: int = CODES
    books: int = 16

    def config(self, variant: str) -> Json:
        """The content of config.json, with the one of the speech tokenizer as `codec`."""
        moved = self.specials - Size.specials
        ids = {f"{name}_token_id": PUBLISHED[f"{name}_token_id"] + moved for name in TEXT_IDS}
        ids["assistant_token_id"] = min(PUBLISHED["assistant_token_id"], self.specials - 1)
        talker = self._talker(has_speakers=variant == "custom-voice")
        speaker = {"enc_dim": talker["hidden_size"], "sample_rate": 24000, **self.speaker}
        return {
            **PUBLISHED,
            **ids,
            "tts_model_size": self.model_size,
            "tts_model_type": variant.replace("-", "_"),
            "talker_config": talker,
            **({"speaker_encoder_config": speaker} if variant == "base" else {}),
            "codec": self._codec(),
        }

    def _talker(self, has_speakers: bool) -> Json:
        moved = self.codes - CODES  # smaller code books move all ids behind them
        ids = {name: TALKER[name] + moved for name in CONTROL_IDS}
        languages = {name: number + moved for name, number in TALKER["codec_language_id"].items()}
        talker = TALKER | self.talker | ids
        half = talker["head_dim"] // 2
        part = half * 5 // 16
        return talker | {
            "vocab_size": TALKER["vocab_size"] + moved,
            "num_code_groups": self.books,
            "pad_token_id": ids["codec_pad_id"],
            "rope_scaling": TALKER["rope_scaling"] | {"mrope_section": [half - 2 * part, part, part]},
            "codec_language_id": {
                name: number for name, number in languages.items() if has_speakers or "_dialect" not in name
            },
            "spk_id": {name: number + moved for name, number in TALKER["spk_id"].items() if has_speakers},
            "spk_is_dialect": TALKER["spk_is_dialect"] if has_speakers else {},
            "code_predictor_config": self._predictor(),
        }

    def _predictor(self) -> Json:
        predictor: Json = PREDICTOR | self.predictor
        layers = ["full_attention"] * predictor["num_hidden_layers"]
        return predictor | {"vocab_size": self.codes, "num_code_groups": self.books, "layer_types": layers}

    def _codec(self) -> Json:
        """The content of the speech tokenizer's config.json."""
        encoder = CODEC["encoder_config"] | self.encoder | {"codebook_size": self.codes}
        encoder["num_key_value_heads"] = encoder["num_attention_heads"]
        encoder["upsample_groups"] = encoder["hidden_size"]
        decoder = CODEC["decoder_config"] | self.decoder | {"codebook_size": self.codes}
        decoder["num_quantizers"] = self.books
        for part in (encoder, decoder):
            part["vector_quantization_hidden_dimension"] = part["codebook_dim"]
        return CODEC | {
            "encoder_valid_num_quantizers": self.books,
            "encoder_config": encoder,
            "decoder_config": decoder,
        }


SIZES = {name: Size(**content) for name, content in _CONTENT["sizes"].items()}


def size_names() -> tuple[str, ...]:
    """Every size in every variant; sizes of the first variant have no suffix."""
    return (*SIZES, *(f"{size}-{variant}" for variant in VARIANTS[1:] for size in SIZES))


def config_of(name: str) -> Json:
    """The configuration of a name of `size_names`, as `Size.config` has it."""
    size, _, variant = name.partition("-")
    return SIZES[size].config(variant or VARIANTS[0])
