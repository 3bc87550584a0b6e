"""params.json: accepted contents, and errors that name the key of a refused value."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from voxport.bundle.errors import CheckpointNotFound, ConfigError
from voxport.model.voxtral_tts.config import Options, VoxtralTTSConfig
from voxport.model.voxtral_tts.family import FAMILY
from voxport.model.voxtral_tts.layouts import MISTRAL
from voxport.model.voxtral_tts.sizes import SIZES

AUDIO, CODEC = "multimodal.audio_model_args", "multimodal.audio_tokenizer_args"
ACOUSTIC = f"{AUDIO}.acoustic_transformer_args"
ABSENT = object()


def parsed(params: Any, source: str = "params.json") -> VoxtralTTSConfig:
    return MISTRAL.parse_config(params, source)


def tiny() -> dict[str, Any]:
    return copy.deepcopy(SIZES["tiny"].params())


def changed(path: str, value: Any) -> dict[str, Any]:
    """The tiny parameters with the value at `path` replaced or removed."""
    params = tiny()
    *sections, key = path.split(".")
    section = params
    for name in sections:
        section = section[name]
    if value is ABSENT:
        del section[key]
    else:
        section[key] = value
    return params


def test_published_numbers_give_the_published_table_sizes() -> None:
    config = parsed(SIZES["full"].params())
    assert (config.n_codebooks, config.semantic_rows, config.addressed_code_rows, config.code_table_rows) == (
        37,
        8320,
        9022,
        9088,
    )
    assert config.codec.windows == (2, 4, 8, 16)
    assert (config.codec.positions_per_frame, config.codec.samples_per_frame) == (8, 1920)
    assert config.acoustic.n_decoding_steps == 7


@pytest.mark.parametrize(("longest", "cache"), [(208, 208), (65536, 2048)])
def test_the_default_cache_is_no_longer_than_the_sequences_of_the_model(longest: int, cache: int) -> None:
    config = parsed(changed("max_seq_len", longest))
    assert FAMILY.default_cache(config, Options()) == cache


def test_code_books_follow_each_other_without_padding() -> None:
    offsets = parsed(SIZES["full"].params()).code_offsets
    assert offsets[:3] == (0, 8194, 8194 + 23)
    assert len(offsets) == 37


def test_both_spellings_of_codebook_fields_are_equal() -> None:
    older = tiny()
    for key in ("semantic_codebook_size", "acoustic_codebook_size", "n_acoustic_codebook"):
        del older["multimodal"]["audio_model_args"][key]
    older["multimodal"]["audio_model_args"]["codebook_sizes"] = ",".join(["254"] + ["21"] * 36)
    assert parsed(older) == parsed(tiny())


@pytest.mark.parametrize("spelled", ["1,1,1,1", "1, 1, 1, 1", [1, 1, 1, 1]])
def test_lists_may_be_comma_strings_or_lists(spelled: str | list[int]) -> None:
    config = parsed(changed(f"{CODEC}.decoder_transformer_lengths_str", spelled))
    assert config.codec.decoder_transformer_lengths == (1, 1, 1, 1)


def test_keys_that_inference_does_not_need_are_ignored() -> None:
    assert parsed(tiny() | {"architectures": ["x"], "new_in_some_version": 1}) == parsed(tiny())


BAD = [
    ("dim", ABSENT),
    ("vocab_size", ABSENT),
    ("multimodal", ABSENT),
    (f"{AUDIO}.audio_token_id", ABSENT),
    (f"{ACOUSTIC}.n_layers", ABSENT),
    (f"{CODEC}.decoder_convs_kernels_str", ABSENT),
    ("n_layers", 0),
    ("n_layers", -1),
    ("n_layers", None),
    ("n_layers", 2.5),
    ("n_layers", "many"),
    ("n_layers", 10**4000),
    ("dim", [96]),
    ("norm_eps", 0.0),
    ("norm_eps", float("nan")),
    ("rope_theta", float("inf")),
    ("rope_theta", 10**4000),
    ("n_kv_heads", 3),
    ("head_dim", 31),
    ("tied_embeddings", False),
    ("use_biases", True),
    ("model_type", "voxtral_realtime"),
    ("multimodal", []),
    (f"{AUDIO}.semantic_codebook_size", 255),
    (f"{AUDIO}.acoustic_codebook_size", 1),
    (f"{AUDIO}.n_acoustic_codebook", 35),
    (f"{AUDIO}.audio_token_id", 1536),
    (f"{AUDIO}.begin_audio_token_id", -1),
    (f"{AUDIO}.input_embedding_concat_type", "concat"),
    (f"{AUDIO}.codebook_sizes", "254,21"),
    (f"{AUDIO}.codebook_sizes", "254,21,22"),
    (f"{AUDIO}.codebook_sizes", "254;21"),
    (f"{AUDIO}.codebook_sizes", [254, [21], [21]]),
    (f"{AUDIO}.codebook_sizes", 254),
    (f"{AUDIO}.audio_encoding_args.frame_rate", 25.0),
    (f"{ACOUSTIC}.input_dim", 64),
    (f"{ACOUSTIC}.dim", 95),
    (f"{ACOUSTIC}.n_heads", 0),
    (f"{CODEC}.sampling_rate", 16000),
    (f"{CODEC}.n_kv_heads", 2),
    (f"{CODEC}.acoustic_dim", 35),
    (f"{CODEC}.decoder_transformer_lengths_str", ""),
    (f"{CODEC}.decoder_transformer_lengths_str", "1,1,1"),
    (f"{CODEC}.decoder_transformer_lengths_str", "1,x,1,1"),
    (f"{CODEC}.decoder_transformer_lengths_str", "1,0,1,1"),
    (f"{CODEC}.decoder_convs_strides_str", "2,2,2,2"),
    (f"{CODEC}.decoder_convs_kernels_str", "3,4,4,5"),
    (f"{CODEC}.attn_sliding_window_size", 4),
    (f"{CODEC}.patch_proj_kernel_size", 9),
    (f"{CODEC}.causal", False),
    ("n_layers", 1 << 20),
    ("hidden_dim", 1 << 31),
    (f"{CODEC}.decoder_transformer_lengths_str", "1,1,1,99999"),
]


@pytest.mark.parametrize(
    ("path", "value"), BAD, ids=lambda value: "absent" if value is ABSENT else str(value)[:40]
)
def test_a_bad_value_is_refused_in_one_line_that_names_its_key(path: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(changed(path, value), "here/params.json")
    message = str(caught.value)
    assert message.startswith("here/params.json: ")
    assert path.split(".")[-1] in message
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"dim": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut", "array", "null", "binary", "nested", "long-number"],
)
def test_a_file_that_is_not_a_configuration_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "params.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"params\.json"):
        MISTRAL.load_config(tmp_path)


def test_a_folder_without_params_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"no params\.json") as caught:
        MISTRAL.load_config(tmp_path)
    assert caught.value.exit_code == 2


def test_a_configuration_is_equal_after_writing_and_reading(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps(tiny()), encoding="utf-8")
    assert MISTRAL.load_config(tmp_path) == parsed(tiny())
