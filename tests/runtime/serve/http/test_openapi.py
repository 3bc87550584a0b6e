"""/openapi.json describes what the server does. It is also fuzzed by hand; see docs/serving.md."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime.speech_tasks import qwen_engines, qwen_task
from support.serve.http_server import RunningServer, Tasks, running
from support.serve.loud_to_text import LoudToText
from support.serve.recordings import three_words, voice_recording
from support.serve.tone_speech import ToneSpeech

from voxport.bundle.json_types import Json
from voxport.runtime.serve.http.openapi import ERROR
from voxport.runtime.serve.voices.store import VoiceStore

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=3,
)
RIGHT = {
    "model": st.sampled_from(("tone", "loud", "other")),
    "input": st.text(max_size=20),
    "voice": st.sampled_from(("anna", "carl", None)),
    "response_format": st.sampled_from(("pcm", "wav", "mp3", "aac")),
    "stream_format": st.sampled_from(("audio", "sse")),
    "max_frames": st.integers(-1, 3),
    "seed": st.integers(-1, 2**64),
    "speed": st.sampled_from((1, 1.0, 2)),
}
BODIES = st.fixed_dictionaries({}, optional={name: right | JSON for name, right in RIGHT.items()})
VOICES, TRANSCRIPTIONS = "/v1/audio/voices", "/v1/audio/transcriptions"
RECORDINGS = {VOICES: voice_recording(), TRANSCRIPTIONS: three_words()}
TEXTS = {"prompt": "", "temperature": "0", "language": "en", "model": "qwen", "name": "Anna"}
TEXTS |= {"transcript": "How are you?", "consent": "yes", "delay_ms": "480"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Also with a model that clones, and a folder for its voices."""
    tasks: Tasks = {"tone": ToneSpeech(), "loud": LoudToText(), "qwen": qwen_task(qwen_engines())}
    with running(tasks, voices=VoiceStore(tmp_path_factory.mktemp("voices"), 1000)) as started:
        yield started


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=20) as found:
        yield found


@pytest.fixture(scope="module")
def document(http: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/openapi.json").json()
    return found


def body_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    (content,) = document["paths"][path]["post"]["requestBody"]["content"].values()
    found: dict[str, Any] = content["schema"]
    return found


def test_every_reference_leads_to_a_schema(document: dict[str, Any]) -> None:
    for reference in set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(document))):
        found = document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


def test_values_are_those_of_this_server(document: dict[str, Any]) -> None:
    speech = body_of(document, "/v1/audio/speech")["properties"]
    assert speech["model"]["enum"] == ["tone", "qwen"] and "opus" in speech["response_format"]["enum"]
    assert speech["input"]["maxLength"] == 4096
    assert body_of(document, "/v1/audio/transcriptions")["properties"]["model"]["enum"] == ["loud"]


def test_every_error_is_declared_in_the_form_that_is_sent(document: dict[str, Any]) -> None:
    for operations in document["paths"].values():
        for operation in operations.values():
            assert set(operation["responses"]) == {"200", "default"}
    assert document["components"]["schemas"]["Error"] == ERROR
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [("speech", "POST"), ("voices", "GET, POST"), ("voices/a", "DELETE")],
)
def test_a_wrong_method_names_the_right_ones(http: httpx2.Client, path: str, methods: str) -> None:
    response = http.request("TRACE", f"/v1/audio/{path}")
    assert response.status_code == 405 and response.headers["allow"] == methods
    jsonschema.validate(response.json(), ERROR)


@settings(max_examples=40)
@given(BODIES)
def test_any_body_is_served_or_refused_in_the_declared_form(
    http: httpx2.Client, document: dict[str, Any], body: dict[str, Any]
) -> None:
    """What the schema does not allow is refused. What it allows may be refused for its content."""
    response = http.post("/v1/audio/speech", content=json.dumps(body))
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        jsonschema.validate(response.json(), ERROR)
        return
    schema = {**body_of(document, "/v1/audio/speech"), "components": document["components"]}
    jsonschema.validate(body, schema)


@st.composite
def forms(draw: st.DrawFn, path: str, schema: Json) -> tuple[Json, Json]:
    """Fields and files of a form by its schema. In most, one of them is missing or has any content."""
    optional = sorted(schema["properties"].keys() - set(schema["required"]))
    names = schema["required"] + draw(st.lists(st.sampled_from(optional), max_size=3, unique=True))
    change, changed = draw(st.sampled_from(("none", "missing", "wrong"))), draw(st.sampled_from(names))
    fields, files = {}, {}
    for name in names:
        field, is_wrong = schema["properties"][name], change == "wrong" and name == changed
        if change == "missing" and name == changed:
            continue
        if field.get("format") == "binary":
            cut = st.sampled_from((b"", b"RIFF", RECORDINGS[path][:900]))
            files[name] = draw(cut) if is_wrong else RECORDINGS[path]
        else:
            text = st.text(st.characters(codec="utf-8"), max_size=10)
            fields[name] = draw(text if is_wrong else values(name, field))
    return fields, files


def values(name: str, field: Json) -> st.SearchStrategy:
    """Right values of a field: those of its schema, else that of `TEXTS`."""
    if field["type"] == "array":
        return st.lists(values(name, field["items"]), max_size=2)
    return st.sampled_from(field["enum"]) if "enum" in field else st.just(TEXTS[name])


def check_form(http: httpx2.Client, document: Json, path: str, data: st.DataObject) -> Json | None:
    """The JSON of a whole answer. A refusal has the form that the document declares."""
    schema = body_of(document, path)
    fields, files = data.draw(forms(path, schema))
    response = http.post(path, data=fields, files=files or None)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        jsonschema.validate(response.json(), ERROR)
        return None
    jsonschema.validate(fields | {name: "" for name in files}, schema)
    return response.json() if response.headers["content-type"] == "application/json" else {}


@settings(max_examples=100)
@given(st.data())
def test_any_form_with_a_recording_is_transcribed_or_refused(
    http: httpx2.Client, document: dict[str, Any], data: st.DataObject
) -> None:
    found = check_form(http, document, TRANSCRIPTIONS, data)
    if found:  # of a JSON format
        assert found["text"] == "one two three"


@settings(max_examples=25)
@given(st.data())
def test_any_form_makes_a_voice_that_is_listed_until_it_is_deleted_or_is_refused(
    http: httpx2.Client, document: dict[str, Any], data: st.DataObject
) -> None:
    made = check_form(http, document, VOICES, data)
    voices = http.get(VOICES).json()["data"]
    listed = {voice["id"] for voice in voices if voice["id"].startswith("voice_")}
    assert listed == ({made["id"]} if made else set())
    for voice in listed:
        assert http.delete(f"{VOICES}/{voice}").json()["deleted"]
        again = http.delete(f"{VOICES}/{voice}")
        assert again.status_code == 404
        jsonschema.validate(again.json(), ERROR)
