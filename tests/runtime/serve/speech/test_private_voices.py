"""Voices that the operator made with `voxport voice` are not served."""

from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from support.runtime.speech_tasks import qwen_engines, qwen_task
from support.serve.http_server import RunningServer, running

from voxport.runtime.families.qwen3_tts import voices
from voxport.runtime.families.qwen3_tts.prompt import Voice
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.wyoming.server import describe
from voxport.runtime.serve.wyoming.speech import SpeechFields, VoiceFields, choose_voice

PRIVATE = "operator"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QwenTextToSpeech:
    """A model that clones, with a private voice and a damaged one. Reading them fails the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = qwen_task(qwen_engines())
    np.save(tmp_path / "vector.npy", np.ones(found._constants.dim, np.float32))
    found.voice_path(PRIVATE).write_bytes(found.import_voice(tmp_path / "vector.npy"))
    found.voice_path("damaged").write_bytes(b"damaged")
    private, read_voice = found.voice_path(PRIVATE).parent, voices.read_voice

    def read(path: Path, *rest: Any) -> Voice:
        assert path.parent != private, "a private voice was read"
        return read_voice(path, *rest)

    monkeypatch.setattr(voices, "read_voice", read)
    return found


def add_bundle_voice(task: QwenTextToSpeech, name: str) -> None:
    content = task.voice_path(PRIVATE).read_bytes()
    (task.bundle.folder / "voice.safetensors").write_bytes(content)
    task.bundle.manifest.voices[name] = "voice.safetensors"


def speak(server: RunningServer, **fields: str) -> httpx2.Response:
    body = {"model": "qwen", "input": "Hi.", "response_format": "pcm", "max_frames": 2} | fields
    return httpx2.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)


def refusal(response: httpx2.Response) -> tuple[Any, ...]:
    error = response.json()["error"]
    assert "damaged" not in error["message"]
    return response.status_code, error["code"], error["param"]


def test_a_bundle_without_voices_serves_none_and_then_its_own(task: QwenTextToSpeech) -> None:
    with running({"qwen": task}, slots=1) as server:
        workers = list(server.models.speech_workers.values())
        assert httpx2.get(f"{server.url}/v1/audio/voices").json()["data"] == []
        for fields in ({}, {"voice": PRIVATE}, {"voice": "damaged"}):
            assert refusal(speak(server, **fields)) == (400, "voice_not_found", "voice")
        assert [voice.name for voice in describe(server.models).tts[0].voices] == ["default"]
        for wish in (None, VoiceFields(name=PRIVATE), VoiceFields(name="default")):
            with pytest.raises(ApiError) as raised:
                choose_voice(server.models, workers, SpeechFields(voice=wish))
            assert raised.value.code == "voice_not_found" and "damaged" not in raised.value.message
        add_bundle_voice(task, "zoe")
        listed = httpx2.get(f"{server.url}/v1/audio/voices").json()["data"]
        assert {each.get("alias_of", each["id"]) for each in listed} == {"zoe"}
        assert refusal(speak(server, voice=PRIVATE)) == (400, "voice_not_found", "voice")
        answer = speak(server)
        assert len(answer.content) == 2 * 1920 * 2 and answer.content == speak(server, voice="zoe").content
        assert [voice.name for voice in describe(server.models).tts[0].voices] == ["zoe"]
        assert choose_voice(server.models, workers, SpeechFields()) == (workers[0], ("zoe", "zoe"))
