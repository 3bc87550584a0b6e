"""GET, POST and DELETE /v1/audio/voices, with the OpenAI client and a tiny model that clones."""

import re
import threading
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import OpenAI
from safetensors import safe_open
from support.runtime.speech_tasks import qwen_engines, qwen_task
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.recordings import voice_recording as recording
from support.serve.tone_speech import ToneSpeech

from voxport.bundle.errors import UsageError, VoxportError
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.voices import api, store
from voxport.runtime.serve.voices.store import VoiceStore


@pytest.fixture(scope="module")
def cloning() -> QwenTextToSpeech:
    return qwen_task(qwen_engines())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "voices"


@pytest.fixture(scope="module")
def server(cloning: QwenTextToSpeech, folder: Path) -> Iterator[RunningServer]:
    tasks = {"tone": ToneSpeech(), "qwen": cloning}
    with running(tasks, voices=VoiceStore(folder, 100), slots=1) as started:
        yield started


def post(
    server: RunningServer, fields: dict[str, Any] | None = None, content: bytes | None = None
) -> httpx2.Response:
    files = {"audio_sample": ("../anna.wav", recording() if content is None else content)}
    data = {"name": "Anna", **(fields or {})}
    return httpx2.post(f"{server.url}/v1/audio/voices", data=data, files=files, timeout=60)


def speak(server: RunningServer, voice: object, **fields: str) -> httpx2.Response:
    body = {
        "model": "qwen",
        "input": "Hi.",
        "voice": voice,
        "response_format": "pcm",
        "max_frames": 2,
        **fields,
    }
    return httpx2.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)


def listed(server: RunningServer) -> dict[str, dict[str, Any]]:
    voices = httpx2.get(f"{server.url}/v1/audio/voices").json()["data"]
    return {voice["id"]: voice for voice in voices}


def error(response: httpx2.Response) -> tuple[Any, ...]:
    found = response.json()["error"]
    return response.status_code, found["code"], found["param"]


def test_a_voice_is_made_speaks_is_listed_and_deleted(
    server: RunningServer, client: OpenAI, folder: Path
) -> None:
    made = client.audio.voices.create(name="Anna", audio_sample=("a.wav", recording()), consent="cons_1")
    assert made.object == "audio.voice" and made.name == "Anna" and made.type == "audio_sample"
    assert listed(server)[made.id]["model"] == "qwen"
    for voice in (made.id, {"id": made.id}):
        assert len(speak(server, voice).content) == 2 * 1920 * 2
    assert [path.name for path in folder.iterdir()] == [f"{made.id}.safetensors"]
    deleted = httpx2.delete(f"{server.url}/v1/audio/voices/{made.id}")
    assert deleted.json() == {"id": made.id, "object": "audio.voice.deleted", "deleted": True}
    assert error(speak(server, made.id)) == (400, "voice_not_found", "voice")
    assert made.id not in listed(server) and list(folder.iterdir()) == []


def test_a_name_that_one_stored_voice_has_is_a_voice(server: RunningServer) -> None:
    number = post(server, {"name": "Zoë"}).json()["id"]
    answer = speak(server, "zoË")
    assert answer.status_code == 200 and answer.headers["x-voxport-voice"] == number
    other = post(server, {"name": "ZOË"}).json()["id"]
    answer = speak(server, "Zoë")
    assert error(answer) == (400, "voice_not_found", "voice")
    assert "several" in answer.json()["error"]["message"] and f"{number}, {other}" in answer.text


def test_the_cache_rows_of_a_stored_voice_are_on_no_disk(
    server: RunningServer, cloning: QwenTextToSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, stored = [], []
    monkeypatch.setattr(cloning._prefixes, "keep", lambda *rest: kept.append(rest))
    monkeypatch.setattr(cloning._prefixes, "save", lambda *rest: stored.append(rest))
    number = post(server, content=recording(level=0.11)).json()["id"]
    assert speak(server, number).status_code == 200
    assert kept and not stored


def test_a_transcript_makes_another_voice_with_codes(server: RunningServer, folder: Path) -> None:
    number = post(server, {"transcript": "How are you?"}).json()["id"]
    with safe_open(folder / f"{number}.safetensors", framework="numpy") as file:
        assert {"codes", "text_ids"} <= set(file.keys()) and "transcript_sha256" in file.metadata()
    assert speak(server, number).status_code == 200


def test_voices_survive_a_restart_and_damaged_files_do_not_count(
    cloning: QwenTextToSpeech, server: RunningServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = post(server, {"name": "Bea \u00e9"}).json()["id"]
    (folder / f"voice_{'0' * 24}.safetensors").write_bytes(b"damaged")
    (folder / f"voice_{'1' * 24}.safetensors").symlink_to(folder / f"{number}.safetensors")
    (folder / "other.safetensors").write_bytes((folder / f"{number}.safetensors").read_bytes())
    with running({"qwen": cloning}, voices=VoiceStore(folder, 100), slots=1) as again:
        assert listed(again)[number]["name"] == "Bea \u00e9"
        assert not {f"voice_{'0' * 24}", f"voice_{'1' * 24}", "other"} & set(listed(again))
        assert speak(again, number).content == speak(server, number).content
    assert caplog.text.count("damaged") == 2


def test_voices_belong_to_the_checkpoint(
    cloning: QwenTextToSpeech, server: RunningServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = post(server, content=recording(1.5)).json()["id"]
    before = listed(server)[number]
    other = copy(cloning)
    other.voice_checkpoint = lambda: "other"  # type: ignore[method-assign]
    with running({"tts-1": cloning, "other": other}, voices=VoiceStore(folder, 100), slots=1) as renamed:
        assert listed(renamed)[number] == before | {"model": "tts-1"} and before["seconds"] == 1.5
        assert speak(renamed, number, model="tts-1").content == speak(server, number).content
        assert error(speak(renamed, number, model="other")) == (400, "voice_not_found", "voice")
    assert "not listed" not in caplog.text
    with running({"other": other}, voices=VoiceStore(folder, 100), slots=1) as foreign:
        assert number not in listed(foreign)
    assert re.search(r"([1-9]) of \1 voices are not listed: .* in bundles named qwen", caplog.text)


def test_only_listed_names_are_voices(server: RunningServer, folder: Path) -> None:
    number = post(server).json()["id"]
    path = folder / f"{number}.safetensors"
    for name in (str(path), path.name, f"../voices/{path.name}", f"{number}.safetensors", "", "other"):
        assert error(speak(server, name)) == (400, "voice_not_found", "voice"), name
    assert error(speak(server, number, model="tone")) == (400, "voice_not_found", "voice")
    for name in (path.name, "..%2f" + path.name, "voice_", "x" * 1000):
        assert httpx2.delete(f"{server.url}/v1/audio/voices/{name}").status_code == 404, name
    assert path.exists()


WRONG = [
    ({"name": ""}, None, "invalid_value", "name"),
    ({"name": "a\x00b"}, None, "invalid_value", "name"),
    ({"name": "a" * 101}, None, "invalid_value", "name"),
    ({"type": "prompt"}, None, "invalid_value", "type"),
    ({"model": "tone"}, None, "voices_not_supported", "model"),
    ({"transcript": "a" * 4097}, None, "string_above_max_length", "transcript"),
    ({"transcript": "..."}, None, "invalid_value", "transcript"),
    ({"transcript": "Hello."}, recording(18), "invalid_value", "transcript"),
    ({"transcript": "How are you? " * 100}, recording(2.7), "invalid_value", "transcript"),
    ({}, b"no audio", "invalid_audio", "audio_sample"),
    ({}, recording(0.5), "invalid_audio", "audio_sample"),
    ({}, recording(9)[:200_000], "invalid_audio", "audio_sample"),
    ({}, recording(31), "invalid_audio", "audio_sample"),
    ({}, recording(2, level=0), "invalid_audio", "audio_sample"),
]


@pytest.mark.parametrize("fields, content, code, param", WRONG)
def test_what_no_voice_can_be_made_from_is_refused_by_name(
    server: RunningServer, folder: Path, fields: dict[str, str], content: bytes | None, code: str, param: str
) -> None:
    before = sorted(folder.iterdir())
    response = post(server, fields, content)
    assert error(response) == (400, code, param)
    assert "/tmp" not in response.text and "voxport-" not in response.text
    assert sorted(folder.iterdir()) == before


def test_wrong_multipart_is_refused(server: RunningServer) -> None:
    url = f"{server.url}/v1/audio/voices"
    assert error(httpx2.post(url, data={"name": "Anna"}, files={"x": b"x"})) == (
        400,
        "missing_file",
        "audio_sample",
    )
    assert httpx2.post(url, json={}).status_code == 400
    assert error(post(server, {"model": "other"})) == (404, "model_not_found", "model")


def test_without_a_folder_nothing_is_stored() -> None:
    with running({"tone": ToneSpeech()}) as server:
        assert error(post(server)) == (403, "voices_not_stored", None)
        response = httpx2.delete(f"{server.url}/v1/audio/voices/{'voice_' + '0' * 24}")
        assert error(response) == (403, "voices_not_stored", None)


class Cloning(ToneSpeech):
    """Makes no voice before `may_make` is set."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content, self.may_make, self.making = content, threading.Event(), threading.Event()

    def check_cloning(self) -> None: ...

    def make_voice(self, recording: Path, transcript: str | None = None) -> bytes:
        self.making.set()
        self.may_make.wait(30)
        return self.content


@pytest.fixture
def held(cloning: QwenTextToSpeech, tmp_path: Path) -> Iterator[tuple[RunningServer, Cloning]]:
    """A server whose voices are made when the test says so."""
    (tmp_path / "a.wav").write_bytes(recording())
    task = Cloning(cloning.make_voice(tmp_path / "a.wav"))
    with running({"tone": task}, Limits(upload_mib=1), voices=VoiceStore(tmp_path / "store", 2)) as server:
        yield server, task
        task.may_make.set()


def test_the_loop_answers_and_texts_are_spoken_while_a_voice_is_made(
    held: tuple[RunningServer, Cloning], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, task = held
    monkeypatch.setattr(api, "MAX_WAITING", 1)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(server).status_code))
    thread.start()
    assert task.making.wait(10)
    assert httpx2.get(f"{server.url}/readyz").status_code == 200
    assert speak(server, "anna", model="tone").status_code == 200
    refused = post(server)
    assert error(refused) == (503, "server_is_overloaded", None) and refused.headers["retry-after"]
    task.may_make.set()
    thread.join(10)
    assert answers == [200]


def test_a_client_that_leaves_has_no_voice(held: tuple[RunningServer, Cloning], tmp_path: Path) -> None:
    server, task = held
    with pytest.raises(httpx2.TimeoutException):
        files = {"audio_sample": ("a.wav", recording())}
        httpx2.post(f"{server.url}/v1/audio/voices", data={"name": "Anna"}, files=files, timeout=0.3)
    assert task.making.is_set()
    wait_until(lambda: not server.connections)
    task.may_make.set()
    wait_until(lambda: server.metric("requests_total", route="/v1/audio/voices", code="500") == 0)
    wait_until(lambda: list((tmp_path / "store").iterdir()) == [])
    assert [voice for voice in listed(server) if voice.startswith("voice_")] == []


def test_sizes_and_numbers_have_limits(held: tuple[RunningServer, Cloning]) -> None:
    server, task = held
    task.may_make.set()
    assert post(server, content=b"a" * 2**20).status_code == 413
    assert [post(server).status_code for _ in range(3)] == [200, 200, 400]
    assert error(post(server)) == (400, "voice_limit_reached", None)


def test_a_full_disk_stores_nothing(
    held: tuple[RunningServer, Cloning], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, task = held
    task.may_make.set()

    def fail(path: Path, content: bytes) -> None:
        raise VoxportError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_whole", fail)
        assert error(post(server)) == (503, "storage_full", "audio_sample")
    assert list((tmp_path / "store").iterdir()) == []
    assert post(server).status_code == 200


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="expected a folder"):
        VoiceStore(tmp_path / "file", 5)
    with pytest.raises(ApiError, match="no stored voice"):
        VoiceStore(tmp_path / "new", 5).delete("voice_x")
