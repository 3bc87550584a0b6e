"""/openapi.json describes what the server does."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText
from support.serve.tone_speech import ToneSpeech

from voxport.runtime.serve.http.openapi import ERROR

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


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"tone": ToneSpeech(), "loud": LoudToText()}) as started:
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
    assert speech["model"]["enum"] == ["tone"] and "opus" in speech["response_format"]["enum"]
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
