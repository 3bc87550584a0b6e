"""Qwen3-TTS: the layout of a text is an option of a request, and a checkpoint limits the frames of a text."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.export.faulty_engines import Engines
from support.runtime.speech_tasks import ToyVoxtral, qwen_task

from voxport.bundle.errors import UsageError
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.speech_request import TEXT_LAYOUTS, SpeechRequest

TEXT = "How are you today?"


@pytest.fixture
def voice(task: QwenTextToSpeech, tmp_path: Path) -> str:
    vector = np.random.default_rng(2).standard_normal(task._constants.dim, dtype=np.float32)
    np.save(tmp_path / "anna.npy", vector)
    (tmp_path / "anna.safetensors").write_bytes(task.import_voice(tmp_path / "anna.npy"))
    return str(tmp_path / "anna.safetensors")


def spoken(task: QwenTextToSpeech, voice: str, **options: Any) -> np.ndarray:
    return np.concatenate(list(task.speak(TEXT, voice=voice, seed=3, **{"max_frames": 6} | options)))


def test_a_request_chooses_the_layout_of_its_text(task: QwenTextToSpeech, voice: str) -> None:
    """A Base model streams its text by default."""
    usual, streaming, other = (spoken(task, voice, text_layout=layout) for layout in (None, *TEXT_LAYOUTS))
    np.testing.assert_array_equal(usual, streaming)
    assert other.shape != usual.shape or not np.allclose(other, usual, atol=1e-3)


def test_a_layout_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="text_layout 'wide': expected streaming or non_streaming"):
        SpeechRequest(TEXT, text_layout=cast(Any, "wide"))


def test_a_model_with_one_layout_takes_no_option() -> None:
    with pytest.raises(UsageError, match="text_layout: this model has one layout; leave it out"):
        next(ToyVoxtral().speak(TEXT, text_layout="streaming"))


@pytest.mark.parametrize(("limit", "asked", "frames"), [(3, 6, 3), (9, 5, 5)])
def test_speech_is_no_longer_than_the_checkpoint_allows(
    engines: Engines, voice: str, limit: int | None, asked: int, frames: int
) -> None:
    """With this seed the model does not end it before."""
    task = qwen_task(engines)
    task._constants = task._constants.model_copy(update={"max_frames": limit})
    samples = spoken(task, voice, max_frames=asked)
    assert len(samples) == frames * task.samples_per_frame
