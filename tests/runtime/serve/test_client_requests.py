"""Requests of programs that people use, as `tools/clients` recorded them or as their source has them, are
answered as these programs expect.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import pcm, text_of
from support.serve.recordings import three_words
from support.serve.tone_speech import ToneSpeech
from websockets.sync.client import connect

ORIGINS = ("http://localhost:18439", "app://obsidian.md")
WORDS = "one two three"
PROBES = ("/v1/readyz", "/v1/test")  # say which server this is, so they must not be answered
END = {"input_audio_buffer.commit", "input_audio.flush", "input_audio.end", "input_text.end"}
LAST = re.compile(r"transcription\.(completed|done)|speech\.audio\.done")
Request = dict[str, Any]


def recorded() -> Iterator[Any]:
    for path in sorted((Path(__file__).parent / "clients").glob("*.json")):
        for index, request in enumerate(json.loads(path.read_text(encoding="utf-8"))):
            yield pytest.param(request, id=f"{request.get('client', path.stem)}-{index}")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"tone": ToneSpeech(), "loud": LoudToText()}, origins=ORIGINS) as started:
        yield started


@pytest.mark.parametrize("request_", recorded())
def test_a_request_of_a_client_is_answered(server: RunningServer, request_: Request) -> None:
    if "messages" in request_:
        events = session(server, request_)
        assert not [each for each in events if each["type"] == "error"]
        return
    path, answer = request_["path"], answered(server, request_)
    if path in PROBES:
        assert answer.status_code == 404
        return
    assert answer.is_success, answer.text
    if request_["method"] == "OPTIONS":
        check_preflight(request_, answer)
    elif path == "/v1/audio/speech":
        check_speech(request_["json"], answer)
    elif path == "/v1/audio/transcriptions":
        check_transcript(dict(each for each in request_["form"] if isinstance(each[1], str)), answer)
    elif path.startswith("/v1/audio/voices"):
        check_voices(answer.json())
    elif path == "/v1/models":
        assert {"tone", "loud", "whisper-1", "tts-1"} <= {each["id"] for each in answer.json()["data"]}


def answered(server: RunningServer, request: Request) -> httpx2.Response:
    content: dict[str, Any] = {"json": request["json"]} if "json" in request else {}
    if "form" in request:
        content["files"] = [(name, part(value)) for name, value in request["form"]]
    headers = [(name, value) for name, value in request["headers"]]
    return httpx2.request(request["method"], server.url + request["path"], headers=headers, **content)


def part(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return None, value
    return value["file"], three_words(), value["type"] or "application/octet-stream"


def check_preflight(request: Request, answer: httpx2.Response) -> None:
    assert answer.headers["access-control-allow-origin"] == dict(request["headers"])["origin"]
    asked = dict(request["headers"])["access-control-request-headers"].split(",")
    allowed = answer.headers["access-control-allow-headers"].lower().replace(" ", "").split(",")
    assert set(asked) <= set(allowed)


def check_voices(listed: Request) -> None:
    """Open WebUI reads `voices`, Mistral's clients `items`, with a time and a user."""
    assert {"anna", "bob"} <= {each["id"] for each in listed["voices"]}
    assert {"total", "page", "page_size", "total_pages"} <= set(listed)
    assert all(datetime.fromisoformat(each["created_at"]).tzinfo for each in listed["items"])
    assert all("user_id" in each for each in listed["items"])


def check_speech(body: Request, answer: httpx2.Response) -> None:
    kind = answer.headers["content-type"]
    of_mistral = "voxtral" in body["model"]
    if body.get("stream_format") == "sse" or (of_mistral and body.get("stream")):
        field = "audio_data" if of_mistral else "audio"
        assert kind.startswith("text/event-stream") and f'"{field}":' in answer.text.replace(" ", "")
        assert "speech.audio.done" in answer.text and "error" not in answer.text
    elif of_mistral:
        assert len(answer.json()["audio_data"]) > 1000
    else:
        expected = {"pcm": "audio/pcm", "wav": "audio/wav"}.get(
            body.get("response_format") or "", "audio/mpeg"
        )
        assert kind.startswith(expected) and len(answer.content) > 1000


def check_transcript(fields: Request, answer: httpx2.Response) -> None:
    if fields.get("stream") == "true":
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert re.search(r'"type": ?"transcri(pt\.text|ption)\.done"', answer.text) and WORDS in answer.text
        return
    found = answer.json()
    assert found["text"] == WORDS
    if fields.get("response_format") == "verbose_json":
        numbers = ("id", "seek", "start", "end", "temperature", "avg_logprob", "compression_ratio")
        words = fields.get("timestamp_granularities[]") == "word"
        for each in [] if words and "segments" not in found else found["segments"]:
            assert all(isinstance(each[name], int | float) for name in (*numbers, "no_speech_prob"))
        assert not words or len(found["words"]) == 3
    if "voxtral" in fields["model"]:
        assert found["model"]


def session(server: RunningServer, request: Request) -> list[Request]:
    """The events of a socket: up to the last of an utterance, if the client ends one."""
    url = server.url.replace("http", "ws") + request["path"]
    own = ("upgrade", "sec-websocket-version")
    headers = [(name, value) for name, value in request["headers"] if name not in own and value != "Upgrade"]
    found: list[Request] = []
    with connect(url, additional_headers=headers, compression=None) as socket:
        found.append(json.loads(socket.recv(5)))
        for message in request["messages"]:
            for each in with_audio(message, 24000 if path_of_openai(request) else 16000):
                socket.send(json.dumps(each))
        kinds = {each["type"] for each in request["messages"]}
        last = LAST if kinds & END else re.compile(r"updated" if "session.update" in kinds else r"created")
        while not last.search(found[-1]["type"]) and found[-1]["type"] != "error":
            found.append(json.loads(socket.recv(5)))
    return found


def path_of_openai(request: Request) -> bool:
    return bool(request["path"].startswith("/v1/realtime"))


def with_audio(message: Request, rate: int) -> Iterator[Request]:
    if message.get("audio") != "AUDIO":
        yield message
        return
    for block in pcm(rate):
        yield message | {"audio": text_of(block)}
