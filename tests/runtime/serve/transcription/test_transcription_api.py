"""POST /v1/audio/transcriptions, used by the OpenAI client and by plain HTTP."""

import io
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import soundfile
from support.runtime.media import MEDIA, media
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import BLOCK, RATE, LoudToText, square_wave

from voxport.runtime.audio.sources import Recording
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.transcription import api


def recording(words: int, rate: int = RATE, name: str = "WAV") -> bytes:
    """For each word 160 ms, of which the middle of the first 80 is loud, and a second of silence at the end.

    Resampling widens the loud part by a few ms.
    """
    block = np.zeros(2 * BLOCK)
    block[BLOCK // 4 : 3 * BLOCK // 4] = square_wave(BLOCK // 2, 0.5)
    samples = np.concatenate([np.tile(block, words), np.zeros(RATE)]).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, np.repeat(samples, rate // RATE), rate, format=name)
    return file.getvalue()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"loud": LoudToText(), "recordings": LoudToText(is_live=False)}) as started:
        yield started


def transcribe(client: openai.OpenAI, content: bytes | None = None, **fields: Any) -> Any:
    file = ("talk.wav", recording(3) if content is None else content)
    return client.audio.transcriptions.create(**{"model": "loud", "file": file, **fields})


def post(
    server: RunningServer, fields: dict[str, Any] | None = None, content: bytes = b"", name: str = "file"
) -> httpx2.Response:
    files = {name: ("talk.wav", content or recording(1))}
    return httpx2.post(
        f"{server.url}/v1/audio/transcriptions", data={"model": "loud", **(fields or {})}, files=files
    )


@pytest.mark.parametrize("language", ["en", "en-US", "English", "auto", None])
def test_a_language_of_the_model_is_taken_and_named(client: openai.OpenAI, language: str | None) -> None:
    found = transcribe(client, response_format="verbose_json", language=language or openai.omit)
    assert found.language == "en" and found.text == "one two three"


def test_the_language_of_a_model_with_several_is_named_if_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LoudToText, "languages", ("en", "fr"))
    with running({"loud": LoudToText()}) as server:
        found = [post(server, {"language": each}).json()["language"] for each in ("", "auto", "cs", "french")]
        several = [post(server, {"languages[]": each}) for each in ("fr", ["en", "fr"], "cs")]
    assert [each.json()["language"] for each in several] == ["fr", None, None]
    assert found == [None, None, None, "fr"]


def test_an_error_after_the_first_text_is_the_last_event() -> None:
    task, feeds = LoudToText(), count()
    with running({"loud": task}) as server:

        def fail() -> None:
            if next(feeds):
                raise RuntimeError("planted")

        task.before_feed = fail
        lines = post(server, {"stream": "true"}, recording(8)).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert len(events) > 1 and {each["type"] for each in events[:-1]} == {"transcript.text.delta"}
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["code"] == "internal_error" and "planted" not in str(events[-1])


@pytest.mark.parametrize("rate, name", [(48000, "WAV"), (16000, "FLAC")])
def test_other_rates_and_formats(client: openai.OpenAI, rate: int, name: str) -> None:
    assert transcribe(client, recording(2, rate, name)).text == "one two"


def test_a_bundle_for_recordings_takes_recordings(client: openai.OpenAI) -> None:
    assert transcribe(client, model="recordings").text == "one two three"


WRONG = [
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"response_format": "diarized_json"}, 400, "unsupported_value", "response_format"),
    ({"timestamp_granularities[]": "letter"}, 400, "invalid_value", "timestamp_granularities"),
    ({"stream": "maybe"}, 400, "invalid_value", "stream"),
    ({"stream": "true", "response_format": "srt"}, 400, "invalid_value", "response_format"),
    (
        {"stream": "true", "response_format": "verbose_json", "timestamp_granularities[]": "word"},
        400,
        "invalid_value",
        "response_format",
    ),
    ({"delay_ms": "-1"}, 400, "invalid_value", "delay_ms"),
    ({"delay_ms": "9" * 5000}, 400, "invalid_value", "delay_ms"),
    ({"delay_ms": "\u0668\u0660"}, 400, "invalid_value", "delay_ms"),  # 80 in other digits
    ({"delay_ms": "81"}, 400, "invalid_value", "delay_ms"),
    ({"temperature": "warm"}, 400, "invalid_value", "temperature"),
    *(
        ({name: value}, 400, "unsupported_value", name)
        for name, value in (
            ("diarize", "true"),
            ("task", "translate"),
            ("translate", "1"),
            ("target_language", "de"),
            ("known_speaker_names", "Anna"),
            ("file_url", "https://example.org/a.wav"),
            ("file_id", "a"),
        )
    ),
]


@pytest.mark.parametrize("fields, status, code, param", WRONG)
def test_what_cannot_be_served_is_refused_by_name(
    server: RunningServer, fields: dict[str, str], status: int, code: str, param: str
) -> None:
    response = post(server, fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)


@pytest.mark.parametrize("content", [b"this is no audio", recording(3, name="FLAC")[:200]])
def test_a_file_that_is_no_recording_is_refused_without_its_path(
    server: RunningServer, content: bytes
) -> None:
    response = post(server, content=content)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == "file"
    assert "/tmp" not in error["message"] and "voxport-" not in error["message"]


def noise_and_silence(name: str) -> bytes:
    block = np.zeros(2 * BLOCK, np.float32)
    block[:BLOCK] = np.random.default_rng(1).uniform(-0.5, 0.5, BLOCK)
    samples, file = np.tile(block, 10), io.BytesIO()
    if name in MEDIA:
        return media(name, samples, RATE)
    soundfile.write(file, samples, RATE, format=name)
    return file.getvalue()


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("name", ["FLAC", "WAV", "AIFF", "mp3", "webm of Chrome", "mp4 of Safari"])
def test_a_recording_that_ends_early_is_refused(server: RunningServer, name: str, part: float) -> None:
    """What can be decoded has some words, whose transcript would look whole."""
    content = noise_and_silence(name)
    url = f"{server.url}/v1/audio/transcriptions"
    response = httpx2.post(
        url, data={"model": "loud"}, files={"file": ("a.flac", content[: int(part * len(content))])}
    )
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "invalid_audio" and error["param"] == "file"
    assert "damaged" in error["message"] or "truncated" in error["message"]
    assert "/tmp" not in error["message"]


@pytest.mark.parametrize("name", ["webm of Chrome", "mp4 of Safari", "ogg of Firefox", "m4a", "mp3", "aac"])
def test_recordings_of_browsers_and_phones_are_transcribed(client: openai.OpenAI, name: str) -> None:
    samples, rate = soundfile.read(io.BytesIO(recording(3)))
    text = transcribe(client, media(name, samples, rate)).text
    assert text.startswith("one two three")  # AAC moves the sound, so that a word may be in two steps


def test_what_the_file_is_and_what_it_is_called_are_named(server: RunningServer) -> None:
    found = post(server, content=media("webm", np.zeros(RATE, np.float32), RATE)[:200])
    message = found.json()["error"]["message"]
    assert found.status_code == 400
    assert message.startswith(
        "file: cannot be read as audio: it is WebM or Matroska, although it is called .wav"
    )


def silence_without_length(seconds: int) -> bytes:
    """A FLAC whose header has no number of samples."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(seconds * RATE, np.float32), RATE, format="FLAC")
    content = bytearray(file.getvalue())
    content[21:26] = bytes([content[21] & 0xF0, 0, 0, 0, 0])
    return bytes(content)


@pytest.mark.parametrize("form", ["json", "text", "srt", "verbose_json"])
def test_an_empty_transcript_has_its_reason(server: RunningServer, form: str) -> None:
    content = silence_without_length(1)
    found = post(server, {"response_format": form}, content)
    assert found.status_code == 200
    assert found.headers["x-no-text"] == "the sound is silent, with a peak of -inf dBFS"
    assert "x-no-text" not in post(server, {"response_format": form}).headers


def test_a_recording_without_a_length_is_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = watch_blocks(monkeypatch)
    with running({"loud": LoudToText()}, Limits(recording_s=2)) as server:
        long = post(server, content=silence_without_length(600))
    assert long.status_code == 400 and long.json()["error"]["code"] == "audio_too_long"
    assert len(blocks) == 3


def test_a_recording_of_a_client_that_has_left_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = watch_blocks(monkeypatch, pause_s=0.05)
    with running({"loud": LoudToText()}) as server:
        with pytest.raises(httpx2.TimeoutException):
            url = f"{server.url}/v1/audio/transcriptions"
            files = {"file": silence_without_length(600)}
            httpx2.post(url, data={"model": "loud"}, files=files, timeout=1)
        wait_until(lambda: server.metric("requests_total", route="/v1/audio/transcriptions", code="499"), 2)
        time.sleep(0.2)
        count = len(blocks)
        time.sleep(0.3)
        assert 0 < count == len(blocks) < 600


def watch_blocks(monkeypatch: pytest.MonkeyPatch, pause_s: float = 0.0) -> list[float]:
    """The seconds so far after each block that is measured."""
    seen, measure = list[float](), Recording.peak_dbfs

    def watched(self: Recording, check: Callable[[float], object]) -> float:
        def checked(seconds: float) -> None:
            time.sleep(pause_s)
            seen.append(seconds)
            check(seconds)

        return measure(self, checked)

    monkeypatch.setattr(Recording, "peak_dbfs", watched)
    return seen


def test_sizes_and_lengths_have_limits() -> None:
    with running({"loud": LoudToText()}, Limits(upload_mib=1, recording_s=2)) as server:
        assert post(server, content=b"a" * 2**20).status_code == 413
        long = post(server, content=recording(10))  # 2.6 s
        assert long.status_code == 400 and long.json()["error"]["code"] == "audio_too_long"
        assert post(server).status_code == 200


@pytest.mark.parametrize("call", [(shutil, "copyfileobj"), (tempfile.SpooledTemporaryFile, "rollover")])
def test_a_disk_that_is_full_is_told(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, call: tuple[object, str]
) -> None:
    """Also while a large upload arrives: up to 1 MiB of it stay in memory."""

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*call, fail)
        response = post(server, content=b"a" * (2**20 + 2**17))
    assert response.status_code == 503 and response.json()["error"]["code"] == "storage_full"
    assert int(response.headers["retry-after"]) >= 1
    assert post(server).status_code == 200


def test_recordings_are_measured_in_threads_that_speech_does_not_use(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list[str]()

    def measured(*arguments: Any) -> Recording:
        names.append(threading.current_thread().name)
        return Recording(*arguments)

    monkeypatch.setattr(api, "Recording", measured)
    assert post(server).status_code == 200
    assert len(names) == 1 and names[0].startswith("upload")


def test_nothing_of_an_upload_is_left(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert post(server).status_code == 200 and post(server, content=b"no audio").status_code == 400
    assert list(Path(tmp_path).iterdir()) == []


def test_a_client_that_leaves_frees_its_place() -> None:
    task = LoudToText()
    task.before_feed = lambda: time.sleep(0.05)
    with running({"loud": task}) as server:
        worker = server.models.transcription_workers["loud"]
        request = httpx2.Request(
            "POST",
            f"{server.url}/v1/audio/transcriptions",
            data={"model": "loud"},
            files={"file": recording(200)},
        )
        content = request.read()
        head = f"POST {request.url.path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n"
        head += f"content-type: {request.headers['content-type']}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode() + content)
            wait_until(lambda: worker._recordings)
        wait_until(lambda: worker.is_idle)
        assert server.metric("cancelled_total", reason="client") == 1
