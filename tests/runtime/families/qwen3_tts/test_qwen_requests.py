"""Requests of traces and of voices that a Qwen3-TTS model does not take: one line that names the field."""

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors import safe_open
from support.runtime.recordings import repeated_sentence
from support.serve.loud_to_text import LoudToText

from voxport.__main__ import main as voxport
from voxport.bundle.errors import UsageError
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.families.qwen3_tts.workload import TRACE
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech

RATE = 24_000
SOUND = (0.3 * repeated_sentence(3.2, RATE)).astype(np.float32)
PCM = (SOUND * 32767).astype(np.int64)
SAMPLING = {
    "temperature": 0.9,
    "top_k": 5,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "sub_temperature": 0.9,
    "sub_top_k": 5,
    "sub_top_p": 1.0,
}
REQUEST = {"mode": "x_vector", "text": "Hi.", "max_new_tokens": 4}
ICL = REQUEST | {"mode": "icl", "ref_text": "How are you?"}
DRAWN = REQUEST | {"sampling": SAMPLING}


def traced(
    task: QwenTextToSpeech, request: str | dict[str, Any], kind: str = "base", **arrays: np.ndarray
) -> dict[str, np.ndarray]:
    """The trace of a request, an object or the text of one."""
    text = request if isinstance(request, str) else json.dumps(request)
    constants = task._constants.model_copy(update={"kind": kind})
    files = [random_checkpoint("qwen3_tts") / name for name in ("vocab.json", "merges.txt")]
    return TRACE.run(task.engine, constants, {"request": np.array(text), **arrays}, False, files)


def noise(task: QwenTextToSpeech, first: int, others: int) -> dict[str, Any]:
    """Noise of so many codes 0 and of so many frames; no frame ends."""
    constants = task._constants
    found = np.zeros((first, constants.vocab_size), np.float32)
    found[:, constants.codec_eos_token_id] = -1e9
    shape = (others, constants.n_codebooks - 1, constants.other_codes)
    return {"noise_c0": found, "noise_cp": np.zeros(shape, np.float32)}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ("{", "request: not JSON"),
        ("[" * 100_000, "request: not JSON"),
        ("[]", "request: "),
        ({}, "request: mode: Field required"),
        (REQUEST | {"mode": "sing"}, "request: mode: .*'x_vector', 'icl', 'speaker' or 'design'"),
        (REQUEST | {"voice": "anna"}, "request: voice: Extra inputs"),
        (REQUEST | {"text": 5}, "request: text: "),
        (REQUEST | {"layout": "wide"}, "request: layout: .*'streaming' or 'non_streaming'"),
        (REQUEST | {"max_new_tokens": 0}, "request: max_new_tokens: .*greater than or equal to 1"),
        (REQUEST | {"sampling": {"wrong": 1}}, "wrong 1.0: no such setting of sampling"),
        (REQUEST | {"sampling": SAMPLING | {"top_p": 2}}, "top_p 2.0: should be less than or equal to 1"),
        (REQUEST | {"sampling": SAMPLING | {"sub_temperature": -1}}, "sub_temperature -1.0: should be"),
        (REQUEST | {"mode": "speaker"}, "mode speaker needs a model of kind custom_voice, this is base"),
        (REQUEST | {"mode": "design"}, "mode design needs a model of kind voice_design, this is base"),
        (REQUEST | {"mode": "icl"}, "request: mode icl needs ref_text, the transcript of the recording"),
        (REQUEST | {"ref_text": "How?"}, "request: ref_text is for mode icl only"),
        (ICL | {"ref_text": "?!"}, r"ref_text: '\?!' has no word"),
        (REQUEST | {"language": "klingon"}, "language 'klingon': this model does not speak it"),
    ],
)
def test_a_wrong_request_of_a_trace_is_named(
    task: QwenTextToSpeech, request_: str | dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        traced(task, request_, ref_pcm=PCM)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("request_", [REQUEST, ICL])
def test_a_clone_needs_a_recording(task: QwenTextToSpeech, request_: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"request: mode {request_['mode']} needs the array ref_pcm"):
        traced(task, request_)


def test_a_recording_that_is_too_short_is_named(task: QwenTextToSpeech) -> None:
    with pytest.raises(UsageError, match="recording: 100 samples, expected at least 1280"):
        traced(task, REQUEST, ref_pcm=PCM[:100])


def test_a_speaker_is_one_of_the_model(task: QwenTextToSpeech) -> None:
    with pytest.raises(UsageError, match="speaker 'nobody': unknown, this model has none"):
        traced(task, REQUEST | {"mode": "speaker", "speaker": "nobody"}, "custom_voice")
    with pytest.raises(UsageError, match="voice: this model speaks with none; name one of them"):
        traced(task, REQUEST | {"mode": "speaker"}, "custom_voice")


@pytest.mark.parametrize("name", ["noise_c0", "noise_cp"])
def test_sampling_needs_both_arrays_of_noise(task: QwenTextToSpeech, name: str) -> None:
    arrays: dict[str, Any] = noise(task, 3, 3)
    del arrays[name]
    with pytest.raises(UsageError, match=f"request: sampling needs the array {name}"):
        traced(task, DRAWN, ref_pcm=PCM, **arrays)


@pytest.mark.parametrize(
    ("first", "others", "says"), [(2, 3, "noise_c0: 2 rows, frame 2"), (3, 1, "noise_cp: 1 rows, frame 1")]
)
def test_noise_that_is_too_short_is_named(task: QwenTextToSpeech, first: int, others: int, says: str) -> None:
    with pytest.raises(UsageError, match=f"{says} needs another one"):
        traced(task, DRAWN, ref_pcm=PCM, **noise(task, first, others))


def test_noise_of_the_frames_is_enough(task: QwenTextToSpeech) -> None:
    assert len(traced(task, DRAWN, ref_pcm=PCM, **noise(task, 3, 3))["codes"]) == 3


def test_line_breaks_at_the_beginning_of_a_text_are_left_out_and_named(
    task: QwenTextToSpeech, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The model would read them as part of its template."""
    soundfile.write(tmp_path / "ref.wav", SOUND, RATE)
    (tmp_path / "anna.safetensors").write_bytes(task.make_voice(tmp_path / "ref.wav"))
    caplog.set_level("INFO")
    options: dict[str, Any] = {"voice": str(tmp_path / "anna.safetensors"), "max_frames": 2}
    for verbatim in (False, True):
        expected = np.concatenate(list(task.speak("Hi.", verbatim=verbatim, **options)))
        assert "line breaks" not in caplog.text
        found = np.concatenate(list(task.speak("\n\r\nHi.", verbatim=verbatim, **options)))
        np.testing.assert_array_equal(found, expected)
        assert caplog.text.count("text: the line breaks at its beginning are not spoken") == 1
        caplog.clear()


@pytest.fixture
def add(
    task: QwenTextToSpeech,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, list[str]]]:
    """Makes a voice of a recording by command. Returns exit code and lines of stderr."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    tasks = {TextToSpeech: task, SpeechToText: LoudToText(whole_sounds=True)}
    monkeypatch.setattr("voxport.runtime.opening.open_task", lambda kind, *_: tasks[kind])
    soundfile.write(tmp_path / "ref.wav", SOUND, RATE)

    def run(*arguments: str) -> tuple[int, list[str]]:
        code = voxport(
            ["voice", "add", "anna", str(tmp_path / "ref.wav"), *arguments, "--replace", "--bundle", "none"]
        )
        return code, capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize(
    ("transcript", "says"),
    [
        ("", "--transcript: it is empty; give at least one word"),
        (" \n ", "--transcript: it is empty; give at least one word"),
        ("...", "--transcript: '...' has no word; give the words of the recording"),
        ("Hi\0", "--transcript has a NUL character at index 2"),
        ("a" * 500_001, "--transcript: 500001 characters, expected at most 500000"),
    ],
)
def test_a_transcript_without_words_is_one_line(
    add: Callable[..., tuple[int, list[str]]], tmp_path: Path, transcript: str, says: str
) -> None:
    code, lines = add("--transcript", transcript)
    errors = [line for line in lines if "error" in line]
    assert code == 2 and len(errors) == 1 and re.search(f"error: {re.escape(says)}", errors[0])
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("transcript", ["A", "How are you? " * 20])
def test_a_transcript_that_does_not_fit_makes_no_voice(
    add: Callable[..., tuple[int, list[str]]], tmp_path: Path, transcript: str
) -> None:
    """The recording has 3.2 s."""
    code, lines = add("--transcript", transcript)
    assert code == 2 and not list(tmp_path.rglob("anna.safetensors"))
    assert re.search(r"error: --transcript: its \d+ characters usually take .* every word", lines[-1])
    assert add("--transcript", "How are you today, my friend?") == (0, [])


def test_a_recording_is_transcribed_for_its_voice(
    add: Callable[..., tuple[int, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.serve.loud_to_text.NUMBERS", ("seven green bottles",))  # for a sound
    code, lines = add("--transcribe-with", "stt")
    found = re.search(r"transcript: (seven.*); if a word is wrong", " ".join(lines))
    assert code == 0 and found
    (voice,) = tmp_path.rglob("anna.safetensors")
    with safe_open(voice, framework="numpy") as file:
        assert file.metadata()["transcript_sha256"] == sha256(found[1].encode()).hexdigest()
    monkeypatch.setattr("support.serve.loud_to_text.LOUD", 2)  # so no sound is a word
    code, lines = add("--transcribe-with", "stt")
    assert code == 2 and "no speech was recognised" in lines[-1]
