"""The configuration of Voxtral-Realtime: shapes, delays, and what its tokenizer says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxport.bundle.constants.voxtral_realtime import RealtimeConstants
from voxport.bundle.errors import ConfigError
from voxport.bundle.manifest import ExportRequest
from voxport.export.resolve import Source, resolve
from voxport.model.checkpoint import expected_tensors
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.model.voxtral_realtime.config import Options, delay_tokens
from voxport.model.voxtral_realtime.family import FAMILY
from voxport.model.voxtral_realtime.modules import embed_delay

FULL = FAMILY.config_of_size("full")


def test_the_parameters_of_the_published_shapes_are_counted() -> None:
    shapes = expected_tensors(FAMILY.build_root(FULL))
    assert len(shapes) == 711 and sum(int(np.prod(shape)) for shape in shapes.values()) == 4_429_679_360


def test_the_head_shares_the_table_unless_the_recipe_separates_them() -> None:
    root: Any = FAMILY.build_root(FULL)
    assert root.output.weight is root.audio.tok_embeddings.weight and not any(
        name.startswith("output") for name in expected_tensors(root)
    )


@pytest.mark.parametrize(
    ("delay", "tokens"), [(80, 1), (160, 2), (240, 3), (480, 6), (960, 12), (1200, 15), (2400, 30)]
)
def test_delays_are_converted_to_tokens(delay: int, tokens: int) -> None:
    assert delay_tokens(delay, FULL) == tokens


@pytest.mark.parametrize("text", ["", "0", "100", "1280", "2480", "-80", "480,", "480;960", "٤٨٠"])
def test_invalid_delays_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="multiple of 80"):
        Options(delay_ms=text)


def test_delays_are_kept_in_order_without_duplicates() -> None:
    assert Options(delay_ms="960, 480,960").delays_ms == (960, 480)


def test_the_delay_embedding_is_cosines_then_sines() -> None:
    found = embed_delay(6, 3072).numpy()
    np.testing.assert_allclose(found[:3], [0.9602, 0.9495, 0.9377], atol=5e-5)
    np.testing.assert_allclose(found[1536:1539], [-0.2794, -0.3137, -0.3473], atol=5e-5)
    assert found[-1] == pytest.approx(6.0e-4, rel=0.01)


def edited_tokenizer(tmp_path: Path, edit: Callable[[Any], object]) -> Path:
    """A checkpoint whose tekken.json was edited."""
    folder = shutil.copytree(random_checkpoint("voxtral_realtime"), tmp_path / "checkpoint")
    content = json.loads((folder / "tekken.json").read_text())
    edit(content)
    (folder / "tekken.json").write_text(json.dumps(content))
    return folder


def constants_of(folder: Path) -> RealtimeConstants:
    source = Source(folder)
    found = resolve(source, ExportRequest(options={"streaming": True})).constants
    assert isinstance(found, RealtimeConstants)
    return found


def test_special_tokens_and_the_silence_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    def edit(content: Any) -> None:
        for token in content["special_tokens"]:
            if token["token_str"] in ("[STREAMING_PAD]", "[TRANSCRIBE]"):  # these two change places
                token["rank"] = 67 - token["rank"]
        content["special_tokens"].sort(key=lambda token: token["rank"])
        content["audio"]["streaming_n_left_pad_tokens"] = 16

    found = constants_of(edited_tokenizer(tmp_path, edit))
    assert (found.pad_id, found.word_id, found.bos_id, found.eos_id) == (35, 33, 1, 2)
    assert found.left_pad_tokens == 16 and found.prompt_length(0) == 1 + 16 + 6
    (tmp_path / "checkpoint" / "tekken.json").unlink()
    assert constants_of(tmp_path / "checkpoint").pad_id == 32


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda content: content["special_tokens"].pop(33), r"\[STREAMING_WORD\] is missing"),
        (lambda content: content["audio"].update(streaming_n_left_pad_tokens=0), "left_pad_tokens"),
        (lambda content: content["special_tokens"][32].update(rank=10**6), "has id 1000000; expected less"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(
    tmp_path: Path, edit: Callable[[Any], object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        FAMILY.layout.load_config(edited_tokenizer(tmp_path, edit))


def test_files_that_disagree_about_the_silence_are_refused(tmp_path: Path) -> None:
    folder = edited_tokenizer(tmp_path, lambda content: None)
    content = json.loads((folder / "params.json").read_text())
    audio = content["multimodal"]["whisper_model_args"]["encoder_args"]["audio_encoding_args"]
    audio["streaming_n_left_pad_tokens"] = 32
    (folder / "params.json").write_text(json.dumps(content))
    assert FAMILY.layout.load_config(folder).schedule.left_pad_tokens == 32
    audio["streaming_n_left_pad_tokens"] = 16
    (folder / "params.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="streaming_n_left_pad_tokens is 16, expected 32"):
        FAMILY.layout.load_config(folder)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, (2400,)), ({"streaming": True}, (480, 2400)), ({"streaming": True, "delay_ms": "80"}, (80,))],
)
def test_default_delays(options: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert Options(**options).delays_ms == expected
