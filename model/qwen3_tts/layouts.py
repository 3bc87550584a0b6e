"""Layouts of Qwen3-TTS checkpoints: the official one and mlx-audio's. Import no torch."""

from pathlib import Path

from voxport.bundle.errors import CheckpointError
from voxport.bundle.qwen_tokenizer import TOKENIZER_CONFIG, VOCABULARY, QwenTokenizer
from voxport.model.checkpoint_layout import CheckpointLayout, WeightFile
from voxport.model.download import read_json, read_object
from voxport.model.mlx.layout import MlxLayout
from voxport.model.qwen3_tts.config import (
    CODEC_CONFIG,
    CONFIG,
    GENERATION_CONFIG,
    SPEECH_TOKENIZER,
    Qwen3TTSConfig,
)

WEIGHTS = "model.safetensors"
WEIGHT_FILES = (("", WEIGHTS), (f"{SPEECH_TOKENIZER}.", f"{SPEECH_TOKENIZER}/{WEIGHTS}"))  # by prefix
TOKENIZER_FILES = (*VOCABULARY, TOKENIZER_CONFIG)
CONTROL_TOKENS = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "assistant_token_id": "assistant",
    "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>",
    "tts_eos_token_id": "<tts_text_eod>",
}
TEXT_PREPROCESSOR = "preprocessor_config.json"
AUDIO_PREPROCESSOR = f"{SPEECH_TOKENIZER}/preprocessor_config.json"
CODEC_CONFIGURATION = f"{SPEECH_TOKENIZER}/configuration.json"
MODEL_TYPE = "qwen3_tts"


class Qwen3TTSLayout(CheckpointLayout[Qwen3TTSConfig]):
    """Two folders, each with a configuration and weights.

    Tensor names of the speech tokenizer begin with `speech_tokenizer.`, as both files have a `decoder`.
    """

    config_class = Qwen3TTSConfig
    marker = f"{CONFIG} with model_type {MODEL_TYPE}"
    folders = (SPEECH_TOKENIZER,)
    has_tokenizer = True

    def load_config(self, folder: Path) -> Qwen3TTSConfig:
        """The contents of the other files are sections of the one configuration."""
        content = read_json(folder, CONFIG)
        if isinstance(content, dict):
            content = content | {"codec": read_json(folder, CODEC_CONFIG)}
            if (folder / GENERATION_CONFIG).is_file():
                content["generation"] = read_json(folder, GENERATION_CONFIG)
        return self.parse_config(content, str(folder / CONFIG))

    def detect(self, folder: Path) -> bool:
        return read_object(folder / CONFIG).get("model_type") == MODEL_TYPE

    def config_files(self, folder: Path) -> list[str]:
        return [CONFIG, CODEC_CONFIG, GENERATION_CONFIG]

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / name, prefix) for prefix, name in WEIGHT_FILES]

    def check_tokenizer(self, folder: Path, config: Qwen3TTSConfig | None) -> None:
        super().check_tokenizer(folder, config)
        there = [name for name in VOCABULARY if (folder / name).is_file()]
        if len(there) == 1:
            (missing,) = set(VOCABULARY) - set(there)
            raise CheckpointError(
                f"{folder / missing}: is missing, and {there[0]} is there; fetch both from one release"
            )
        if there and config:
            self._check_ids(folder, config)

    def _check_ids(self, folder: Path, config: Qwen3TTSConfig) -> None:
        """Raises CheckpointError if ids of the vocabulary, or of tokens beside it, are not the model's."""
        ids = QwenTokenizer([folder / name for name in VOCABULARY]).vocabulary
        added = read_object(folder / TOKENIZER_CONFIG).get("added_tokens_decoder")
        for each, entry in added.items() if isinstance(added, dict) else ():
            if isinstance(entry, dict) and each.isdecimal():
                ids[str(entry.get("content"))] = int(each)
        rows = config.talker_config.text_vocab_size
        wrong = [f"{token!r} is {each}, below {rows} expected" for token, each in ids.items() if each >= rows]
        for key, token in CONTROL_TOKENS.items():
            expected = getattr(config, key)
            if ids.get(token, expected) != expected:
                wrong.append(f"{token!r} is {ids[token]}, {expected} expected from {key}")
        if wrong:
            raise CheckpointError(
                f"{folder}: ids of the tokenizer: {wrong[0]}; fetch all files from one release"
            )

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [name for name in TOKENIZER_FILES if (folder / name).is_file()]


class Qwen3TTSMlx(MlxLayout[Qwen3TTSConfig]):
    """mlx-audio (0.6): the published names and files. The convolutions of the speaker encoder are in MLX's
    order of axes; mlx-audio takes the speech tokenizer as published.
    """

    has_tokenizer = True
    model_type = MODEL_TYPE
    reordered = ("speaker_encoder.",)
    integers = (
        "talker.model.layers.*",
        "talker.codec_head",
        "talker.code_predictor.model.layers.*",
        "talker.code_predictor.lm_head.*",
        "talker.code_predictor.small_to_mtp_projection",
    )
    weights = WEIGHT_FILES
    copied = (
        GENERATION_CONFIG,
        CODEC_CONFIG,
        TEXT_PREPROCESSOR,
        AUDIO_PREPROCESSOR,
        CODEC_CONFIGURATION,
        *TOKENIZER_FILES,
    )


OFFICIAL = Qwen3TTSLayout()
LAYOUTS = (OFFICIAL, Qwen3TTSMlx(OFFICIAL))
