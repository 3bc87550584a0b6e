"""Fields without effect: ignored and named by a server, refused by a strict one."""

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText
from support.serve.recordings import three_words
from support.serve.tone_speech import ToneSpeech
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from voxport.runtime.serve import fields
from voxport.runtime.serve.ignored import UnknownFields

SPEECH: dict[str, Any] = {"model": "tone", "input": "Hi.", "voice": "anna", "response_format": "pcm"}
HINTS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("speech", {name: value})
        for name, value in (
            ("instructions", "Cheerful."),
            ("ref_text", "Hello."),
            ("voice_id", "bob"),
            ("language", "klingon"),
            ("user", "u1"),
            ("temperature", 0.7),
            ("stream_options", {"include_usage": True}),
            ("normalization_options", {"normalize": False}),
            ("volume_multiplier", 1.5),
            ("metadata", {"a": [1, None]}),
            ("max_new_tokens", 100),
        )
    ),
    *(
        ("transcriptions", {name: value})
        for name, value in (
            ("prompt", "Names: Anna."),
            ("temperature", "0.2"),
            ("language", "cs"),
            ("chunking_strategy", "auto"),
            ("chunking_strategy[type]", "server_vad"),
            ("include[]", "logprobs"),
            ("vad_filter", "false"),
            ("hotwords", "Voxport"),
            ("keywords", ["one", "two"]),
            ("context_bias", "Voxport"),
        )
    ),
    ("transcriptions", {"timestamp_granularities[]": "word", "response_format": "srt"}),
]


@pytest.fixture(scope="module", params=["lenient", "strict"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running(
        {"tone": ToneSpeech(), "loud": LoudToText()}, is_strict=request.param == "strict"
    ) as started:
        yield started


def send(server: RunningServer, path: str, fields: dict[str, Any]) -> httpx2.Response:
    url = f"{server.url}/v1/audio/{path}"
    if path.startswith("speech"):
        return httpx2.post(url, json=SPEECH | fields)
    return httpx2.post(url, data={"model": "loud", **fields}, files={"file": ("a.flac", three_words())})


@pytest.mark.parametrize("path, fields", HINTS)
def test_a_field_without_effect_is_named(server: RunningServer, path: str, fields: dict[str, Any]) -> None:
    answer, name = send(server, path, fields), next(iter(fields)).replace("granularities[]", "granularities")
    if server.models.is_strict:
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == name and name in error["message"]
    else:
        assert answer.status_code == 200 and answer.headers["x-voxport-ignored"] == name


@pytest.mark.parametrize(
    "path, names",
    [
        ("speech", "voice response_format stream_format speed seed max_frames language instructions n other"),
        (
            "transcriptions",
            "response_format stream delay_ms language temperature prompt diarize file_url other",
        ),
    ],
)
def test_null_and_an_empty_text_are_as_a_missing_field(server: RunningServer, path: str, names: str) -> None:
    for empty in (None, "") if path == "speech" else ("",):
        answer = send(server, path, dict.fromkeys(names.split(), empty))
        assert answer.status_code == 200 and "x-voxport-ignored" not in answer.headers


def test_a_request_that_names_no_model_has_the_first_one_of_its_task(server: RunningServer) -> None:
    answers = [send(server, path, {"model": ""}) for path in ("speech", "transcriptions")]
    assert {answer.status_code for answer in answers} == {400 if server.models.is_strict else 200}


@pytest.mark.parametrize("value", ["True", "1", "true", "TRUE"])
def test_truth_has_several_spellings(server: RunningServer, value: str) -> None:
    assert send(server, "transcriptions", {"stream": value}).headers["content-type"].startswith("text/event")


@pytest.mark.parametrize(
    "value", [["word", "segment"], "word,segment", '["word", "segment"]', "segment word"]
)
@pytest.mark.parametrize("name", ["timestamp_granularities", "timestamp_granularities[]"])
def test_lists_have_several_spellings(server: RunningServer, name: str, value: str | list[str]) -> None:
    fields = {name: value, "response_format": "verbose_json"}
    assert {"words", "segments"} <= send(server, "transcriptions", fields).json().keys()


@pytest.mark.parametrize("wanted", ["word", "segment"])
def test_only_what_is_wanted_is_in_an_answer(server: RunningServer, wanted: str) -> None:
    fields = {"timestamp_granularities": wanted, "response_format": "verbose_json"}
    assert {"words", "segments"} & send(server, "transcriptions", fields).json().keys() == {f"{wanted}s"}


def test_segments_have_the_fields_that_typed_clients_parse(server: RunningServer) -> None:
    (segment,) = send(server, "transcriptions", {"response_format": "verbose_json"}).json()["segments"]
    texts, measured = {"type", "text", "tokens"}, {"avg_logprob", "compression_ratio", "no_speech_prob"}
    assert segment.keys() == {"id", "seek", "start", "end", "temperature"} | measured | texts
    assert all(type(segment[name]) is int for name in ("id", "seek"))  # Go reads no 0.0 as an integer
    assert all(type(segment[name]) is float for name in {"start", "end", "temperature"} | measured)
    assert segment["text"] == "one two three" and segment["tokens"] == []


def test_names_in_a_header_are_printable_and_few() -> None:
    wrong = {"a\r\nx-evil: 1": 1, "schön": 1, "b" * 1000: 1, **{f"f{index}": 1 for index in range(100)}}
    with running({"tone": ToneSpeech()}) as server:
        answer = send(server, "speech", wrong)
    names = answer.headers["x-voxport-ignored"].split(", ")
    assert names[:3] == ["a??x-evil:?1", "sch?n", "b" * 60] and names[20:] == ["and 83 more"]
    assert "x-evil" not in answer.headers


class ComparedName(str):
    """Counts comparisons with other names."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        ComparedName.comparisons += 1
        return super().__eq__(other)


def test_names_of_unknown_fields_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search in a list takes 500,000 comparisons here, and half a minute for a whole message of fields."""
    monkeypatch.setattr(fields, "as_header", ComparedName)
    found = fields.parse_message(fields.SpeechFields, {f"x{index}": 1 for index in range(1000)})
    assert len(found.ignored) == 1000 and ComparedName.comparisons < 1000


def test_fields_without_effect_are_logged_once_per_client(caplog: pytest.LogCaptureFixture) -> None:
    with (
        running({"tone": ToneSpeech()}) as server,
        caplog.at_level(logging.INFO, "voxport.runtime.serve.ignored"),
    ):
        for agent in ("first", "first", "second"):
            body = SPEECH | {"once": agent}
            url = f"{server.url}/v1/audio/speech"
            httpx2.post(url, json=body, headers={"user-agent": agent})
    assert [line for line in caplog.messages if "once" in line] == [
        f"fields without effect from {agent!r}: once" for agent in ("first", "second")
    ]


@pytest.mark.parametrize("path", ["speech", "transcriptions"])
def test_a_field_of_the_address_without_effect_is_named(server: RunningServer, path: str) -> None:
    answer = send(server, f"{path}?api-version=2026-01-01", {})
    if server.models.is_strict:
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "api-version"
    else:
        assert answer.status_code == 200 and answer.headers["x-voxport-ignored"] == "api-version"


SOUND = base64.b64encode(bytes(3200)).decode()
MODEL = {"type": "session.update", "model": "loud"}
SOCKETS: list[tuple[str, list[dict[str, Any]], str]] = [
    # the path of a socket, messages whose last one has the field `extra`, and the event that names it
    ("realtime?intent=transcription", [{"type": "input_audio_buffer.clear"}], "input_audio_buffer.cleared"),
    ("realtime?intent=transcription", [{"type": "input_audio_buffer.commit"}], "error"),
    ("realtime", [MODEL], "transcription.done"),
    ("realtime", [MODEL, {"type": "input_audio_buffer.append", "audio": SOUND}], "transcription.done"),
    ("realtime", [MODEL, {"type": "input_audio_buffer.commit", "final": False}], "transcription.done"),
    ("audio/transcriptions/realtime?model=loud", [{"type": "input_audio.flush"}], "transcription.done"),
    ("audio/speech/stream", [{"type": "input.text", "text": "Hi."}], "audio.start"),
    ("audio/speech/realtime?model=tone", [{"type": "session.update", "session": {}}], "session.updated"),
    (
        "audio/speech/realtime?model=tone",
        [{"type": "input_text.append", "text": "Hi."}],
        "speech.audio.delta",
    ),
]
ENDS: dict[str, list[dict[str, Any]]] = {  # what makes the server send the event
    "transcription.done": [
        {"type": "input_audio_buffer.append", "audio": SOUND},
        {"type": "input_audio_buffer.commit", "final": True},
    ],
    "audio.start": [{"type": "input.done"}],
    "speech.audio.delta": [{"type": "input_text.end"}],
}


@pytest.mark.parametrize("path, messages, event", SOCKETS)
def test_an_unknown_field_of_a_socket_is_named_once(
    server: RunningServer, path: str, messages: list[dict[str, Any]], event: str
) -> None:
    sent = [*messages[:-1], messages[-1] | {"extra": 1}]
    if "transcriptions" not in path:
        sent += ENDS.get(event, [])
    with connect(f"{server.url.replace('http', 'ws')}/v1/{path}") as socket:
        for message in sent:
            socket.send(json.dumps(message))
        found = answer_of(socket, "error" if server.models.is_strict else event)
        if server.models.is_strict:
            assert "extra" in json.dumps(found)
            return
        assert found["ignored"] == ["extra"]
        if event == "input_audio_buffer.cleared":
            socket.send(json.dumps(sent[-1]))
            assert "ignored" not in answer_of(socket, event)


def test_of_many_unknown_fields_a_socket_names_the_first_ones() -> None:
    unknown = UnknownFields(is_strict=False)
    unknown.add(f"field{index}" for index in range(30))
    assert unknown.take() == (*(f"field{index}" for index in range(20)), "and more")
    unknown.add(["field0", "field29", "field30"])
    assert unknown.take() == ()


def answer_of(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next event of the kind. Events before it name no fields."""
    while True:
        message = socket.recv(timeout=10)
        event: dict[str, Any] = json.loads(message) if isinstance(message, str) else {"type": "binary"}
        if event["type"] == kind:
            return event
        assert "ignored" not in event, event


@pytest.mark.parametrize(
    "path",
    [
        "realtime?model=loud&",
        "audio/transcriptions/realtime?model=loud&",
        "audio/speech/stream?",
        "audio/speech/realtime?model=tone&",
    ],
)
def test_a_field_of_the_address_of_a_socket_is_named(server: RunningServer, path: str) -> None:
    url = f"{server.url.replace('http', 'ws')}/v1/{path}api-version=2026-01-01"
    if server.models.is_strict:
        with pytest.raises(InvalidStatus, match="HTTP 400"), connect(url):
            pass
        return
    with connect(url) as socket:
        if path == "audio/speech/stream?":  # the server does not speak first
            socket.send("{}")
        assert json.loads(socket.recv(timeout=10))["ignored"] == ["api-version"]
