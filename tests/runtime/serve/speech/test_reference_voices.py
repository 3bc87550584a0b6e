"""Speech with the voice of a recording that comes with the request."""

import base64
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mistralai.client
import pytest
from support.runtime.speech_tasks import qwen_engines, qwen_task
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.recordings import voice_recording
from support.serve.speech_requests import post_speech

BODY = {"model": "qwen", "input": "Hi.", "response_format": "pcm", "max_frames": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"qwen": qwen_task(qwen_engines())}, slots=1) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("start", ["", "data:audio/wav;base64,"])
@pytest.mark.parametrize("transcript", [{}, {"ref_text": "How are you?"}])
def test_the_recording_speaks_and_is_deleted(
    server: RunningServer, folder: Path, start: str, transcript: dict[str, str]
) -> None:
    sound = start + base64.b64encode(voice_recording()).decode()
    answer = post_speech(server, {**BODY, "ref_audio": sound, "voice": "anyone", **transcript}, timeout=60)
    assert len(answer.content) == 2 * 1920 * 2
    wait_until(lambda: not list(folder.iterdir()))


def test_the_client_of_mistral_clones(server: RunningServer) -> None:
    client = mistralai.client.Mistral(server_url=server.url)
    sound = base64.b64encode(voice_recording()).decode()
    extra = {"max_frames": 2}
    answer = client.audio.speech.complete(
        model="qwen", input="Hi.", ref_audio=sound, response_format="pcm", additional_properties=extra
    )
    assert len(base64.b64decode(answer.audio_data)) == 2 * 1920 * 4


@pytest.mark.parametrize(
    "sound, reason",
    [
        ("https://example.com/a.wav", "expected base64"),
        (base64.b64encode(b"no sound").decode(), "ref_audio"),
    ],
)
def test_what_is_no_recording_is_refused(
    server: RunningServer, folder: Path, sound: str, reason: str
) -> None:
    answer = post_speech(server, {**BODY, "ref_audio": sound}, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "ref_audio" and reason in error["message"]
    assert not list(folder.iterdir())
