"""A tuned checkpoint speaks with its speakers, however their names are written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import Engines
from support.runtime.speech_tasks import qwen_engines, qwen_task

from voxport.bundle.errors import ConfigError
from voxport.export.resolve import Source
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder, PromptRows
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.speech_request import SpeechRequest

SPEAKERS = {"Anna": [40], "zoe": 41}
NAMES: dict[str, Any] = {
    "spk_id": SPEAKERS,
    "spk_is_dialect": {"ANNA": "Beijing_Dialect", "zoe": False},
    "codec_language_id": {"English": 320, "Chinese": 321, "beijing_Dialect": 322},
}


def rename(folder: Path, **sections: dict[str, object]) -> None:
    """Changes sections of the talker's configuration."""
    content = json.loads((folder / "config.json").read_text())
    content["talker_config"] |= sections
    (folder / "config.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "model"
    write_checkpoint(folder, "tiny-custom-voice", key="qwen3_tts")
    rename(folder, **NAMES)
    return folder


@pytest.fixture(scope="module")
def engines(folder: Path) -> Engines:
    return qwen_engines(folder)


@pytest.fixture(scope="module")
def task(engines: Engines) -> QwenTextToSpeech:
    return qwen_task(engines)


def rows(task: QwenTextToSpeech, **options: Any) -> PromptRows:
    prompt = task._prompt(SpeechRequest("Hi.", **options))
    return PromptEmbedder(task.engine.stream(), task._constants).rows(prompt)


def code_row(task: QwenTextToSpeech, code: int) -> np.ndarray:
    found: np.ndarray = PromptEmbedder(task.engine.stream(), task._constants).control(code)[0]
    return found


@pytest.mark.parametrize(
    ("voice", "code"), [(None, 40), ("anna", 40), ("Anna", 40), ("ANNA", 40), ("zoe", 41), ("Zoe", 41)]
)
def test_the_row_of_a_speaker_is_in_the_prompt(task: QwenTextToSpeech, voice: str | None, code: int) -> None:
    """Row 7 behind the three of the role and the four of the language: the speaker and padding of text."""
    found = rows(task, voice=voice, language="en")
    np.testing.assert_allclose(found.prefill[7] - found.padding, code_row(task, code), atol=1e-5)


@pytest.mark.parametrize(("language", "code"), [("en", 320), ("zh", 322), (None, 322)])
def test_the_row_of_a_language_is_in_the_prompt(
    task: QwenTextToSpeech, language: str | None, code: int
) -> None:
    """Anna speaks a dialect, which replaces Chinese and no language."""
    found = rows(task, voice="Anna", language=language)
    np.testing.assert_allclose(found.prefill[5] - found.padding, code_row(task, code), atol=1e-5)


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("spk_id", {"Anna": 40, "anna": 41}),
        ("codec_language_id", NAMES["codec_language_id"] | {"english": 323}),
        ("spk_is_dialect", {"Anna": False, "ANNA": "chinese"}),
    ],
)
def test_names_that_differ_only_by_case_are_refused(
    tmp_path: Path, section: str, names: dict[str, Any]
) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder, "tiny-custom-voice", key="qwen3_tts")
    rename(folder, **NAMES | {section: names})
    with pytest.raises(ConfigError, match=f"{section}: .* differ only by case; rename one of them"):
        Source(folder)


def test_the_voices_are_listed_by_the_names_that_are_looked_up(task: QwenTextToSpeech) -> None:
    assert task.voices() == {"anna": 1, "zoe": 1}
