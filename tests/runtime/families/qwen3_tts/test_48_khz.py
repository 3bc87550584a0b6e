"""A speech tokenizer of 48 kHz: its rate holds for all that is spoken, and recordings are read at 24 kHz."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load
from support.model.qwen_48_khz import FRAME, RATE, write_48_khz
from support.runtime.recordings import repeated_sentence
from support.runtime.speech_tasks import qwen_engines, qwen_task

from voxport.__main__ import main as voxport
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech

CODES = np.random.default_rng(0).integers(0, 256, (10, 6))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> QwenTextToSpeech:
    return qwen_task(qwen_engines(write_48_khz(tmp_path_factory.mktemp("48_khz") / "model")))


def run(monkeypatch: pytest.MonkeyPatch, task: QwenTextToSpeech, *arguments: Any) -> None:
    """A command on the task in place of a bundle."""
    monkeypatch.setattr("voxport.runtime.opening.open_task", lambda *_: task)
    assert voxport([*map(str, arguments), "--bundle", "none"]) == 0


def test_decoded_codes_have_the_rate_of_the_model(task: QwenTextToSpeech) -> None:
    samples = task.decode(CODES)
    assert (task.sample_rate, task.samples_per_frame, samples.shape) == (RATE, FRAME, (len(CODES) * FRAME,))


def test_files_have_the_rate_and_the_seconds(
    task: QwenTextToSpeech,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.save(tmp_path / "codes.npy", CODES)
    (tmp_path / "voice.safetensors").write_bytes(task.neutral_voice())
    run(monkeypatch, task, "codec", "decode", tmp_path / "codes.npy", tmp_path / "decoded.wav")
    spoken = ("--voice", tmp_path / "voice.safetensors", "--max-frames", 5, "-o", tmp_path / "spoken.wav")
    capsys.readouterr()
    run(monkeypatch, task, "say", "Hello.", *spoken, "--json")
    result = json.loads(capsys.readouterr().out)
    for name, frames in (("decoded.wav", 10), ("spoken.wav", 5)):
        found = soundfile.info(str(tmp_path / name))
        assert (found.samplerate, found.frames) == (RATE, frames * FRAME), name
    assert (result["sample_rate"], result["seconds"]) == (RATE, 0.4)


@pytest.mark.parametrize("rate", [24_000, 48_000])
def test_recordings_give_the_codes_and_voices_of_the_base(
    task: QwenTextToSpeech, tmp_path: Path, rate: int
) -> None:
    """The encoders are those of the embedded Base model."""
    recording, base = tmp_path / "a.wav", qwen_task(qwen_engines())
    soundfile.write(recording, 0.3 * repeated_sentence(2, rate), rate, "FLOAT")
    codes = task.encode(recording)
    assert len(codes) == 25
    np.testing.assert_array_equal(codes, base.encode(recording))
    found, expected = (load(each.make_voice(recording)) for each in (task, base))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
