"""Any multipart body to the two endpoints that take one is served, or refused in the form of all errors."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from support.serve.http_server import RunningServer, Tasks, running
from support.serve.loud_to_text import LoudToText
from support.serve.recordings import three_words
from support.serve.tone_speech import ToneSpeech

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.fields import TranscriptionBody, VoiceBody
from voxport.runtime.serve.http.uploads import MAX_FIELDS
from voxport.runtime.serve.voices.store import VoiceStore

BOUNDARY = b"boundary"
RIGHT_TYPE = b"multipart/form-data; boundary=boundary"
VOICES, TRANSCRIPTIONS = "/v1/audio/voices", "/v1/audio/transcriptions"
RECORDING = three_words()
RIGHT = {  # for each path: its file, and its other fields
    TRANSCRIPTIONS: ("file", {"model": "loud"}),
    VOICES: ("audio_sample", {"name": "Anna"}),
}


class CloningTone(ToneSpeech):
    """Makes a voice from every file that is a recording."""

    def __init__(self, voice: bytes) -> None:
        super().__init__()
        self.voice = voice

    def check_cloning(self) -> None: ...

    def make_voice(self, recording: Path, transcript: str | None = None) -> bytes:
        try:
            soundfile.info(recording)
        except soundfile.LibsndfileError:
            raise UsageError(f"{recording}: is no recording") from None
        return self.voice


@dataclass(frozen=True)
class Body:
    """The bytes of a request and their media type."""

    content: bytes
    media_type: bytes = RIGHT_TYPE


@dataclass(frozen=True)
class Part:
    """A part of a body: the lines of its head, and its content."""

    head: bytes
    content: bytes

    def __bytes__(self) -> bytes:
        return b"--%b\r\n%b\r\n\r\n%b\r\n" % (BOUNDARY, self.head, self.content)


def disposition(name: bytes, rest: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="%b"%b' % (name, rest)


def field(name: str, value: bytes) -> Part:
    return Part(disposition(name.encode()), value)


def upload(name: str, content: bytes = RECORDING) -> Part:
    return Part(disposition(name.encode(), b'; filename="a.flac"'), content)


def body(parts: list[Part], media_type: bytes = RIGHT_TYPE) -> Body:
    return Body(b"".join(map(bytes, parts)) + b"--%b--\r\n" % BOUNDARY, media_type)


def right_parts(path: str) -> list[Part]:
    file, fields = RIGHT[path]
    return [upload(file), *(field(name, value.encode()) for name, value in fields.items())]


FIELDS_OF = {
    path: [RIGHT[path][0], *(field.alias or name for name, field in kind.model_fields.items())]
    for path, kind in ((TRANSCRIPTIONS, TranscriptionBody), (VOICES, VoiceBody))
}
TEXTS = ("loud", "tone", "Anna", "srt", "verbose_json", "word", "true", "0", "480", "80")
WRONG_TEXTS = ("", "null", "[]", '{"a": 1}', "-1", "1e999", "NaN", "true\n", "\x00", "../x", "9" * 5000)
VALUES = st.sampled_from((*TEXTS, *WRONG_TEXTS)).map(str.encode) | st.binary(max_size=20)
CONTENTS = st.just(RECORDING) | st.binary(max_size=50) | st.integers(1, 999).map(lambda end: RECORDING[:end])
NAME = st.text(max_size=8).map(str.encode) | st.binary(max_size=8)
HEADS = (
    NAME.map(disposition)
    | st.sampled_from((b"", b"Content-Disposition: form-data", b'Content-Disposition: x; filename="x"'))
    | st.binary(max_size=20)
)
CHARSETS = ("latin-1", "utf-16", "unicode_escape", "undefined", "hex", "none")
MEDIA_TYPES = (
    b"multipart/form-data",
    b"multipart/form-data; boundary=other",
    b"multipart/mixed; boundary=boundary",
    b"application/json",
    b"",
    *(RIGHT_TYPE + b"; charset=" + name.encode() for name in CHARSETS),
)


@st.composite
def bodies(draw: st.DrawFn, path: str) -> Body:
    """A right body with one change. Most changes leave what is read first, so the rest is reached."""
    parts, media_type = right_parts(path), RIGHT_TYPE
    change = draw(st.sampled_from(("fields", "fields", "parts", "without", "many", "cut", "media type")))
    if change == "fields":  # also of the same name
        names = st.sampled_from(FIELDS_OF[path])
        parts += draw(st.lists(st.builds(field, names, VALUES), min_size=1, max_size=3))
    if change == "parts":
        parts = draw(st.permutations([*parts, draw(st.builds(Part, HEADS, VALUES | CONTENTS))]))
    if change == "without":
        parts.remove(draw(st.sampled_from(parts)))
    if change == "many":
        parts += [draw(st.sampled_from(parts))] * draw(st.sampled_from((1, MAX_FIELDS, 1001)))
    if change == "media type":
        media_type = draw(st.sampled_from(MEDIA_TYPES))
    content = body(parts).content
    if change == "cut":
        content = content[: draw(st.integers(0, len(content) - 1))]
    return Body(content, media_type)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    voice = save({"vector": np.ones(4, np.float32)}, {"model": "tone"})
    tasks: Tasks = {"tone": CloningTone(voice), "loud": LoudToText()}
    with running(tasks, voices=VoiceStore(tmp_path_factory.mktemp("voices"), 10_000)) as started:
        yield started


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=20) as found:
        yield found


def send(http: httpx2.Client, path: str, sent: Body) -> httpx2.Response:
    return http.post(path, content=sent.content, headers={b"content-type": sent.media_type})


def check(http: httpx2.Client, path: str, sent: Body) -> None:
    """The answer is a 2xx or a refusal in the form of errors, and then a right request is answered."""
    response = send(http, path, sent)
    assert response.is_success or 400 <= response.status_code < 500, response.text
    assert response.status_code != 422
    if not response.is_success:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    right = send(http, path, body(right_parts(path))).json()
    if path == TRANSCRIPTIONS:
        assert right["text"] == "one two three"
    else:
        assert http.delete(f"{VOICES}/{right['id']}").json()["deleted"]


SURROGATE = b"\\ud800"  # which UTF-8 does not have
ESCAPED = RIGHT_TYPE + b"; charset=unicode_escape"


@settings(max_examples=100)
@given(bodies(TRANSCRIPTIONS))
@example(body(right_parts(TRANSCRIPTIONS)))
@example(body([upload("file"), field("model", b"loud"), Part(disposition(SURROGATE), b"")], ESCAPED))
@example(body(right_parts(TRANSCRIPTIONS), RIGHT_TYPE + b"; charset=undefined"))
def test_any_body_with_a_recording_is_served_or_refused(http: httpx2.Client, sent: Body) -> None:
    check(http, TRANSCRIPTIONS, sent)


@settings(max_examples=100)
@given(bodies(VOICES))
@example(body(right_parts(VOICES)))
@example(body([*right_parts(VOICES), field("model", SURROGATE)], ESCAPED))
def test_any_body_with_a_voice_is_served_or_refused(http: httpx2.Client, sent: Body) -> None:
    check(http, VOICES, sent)


def test_text_after_the_closing_boundary_is_ignored(http: httpx2.Client) -> None:
    content = body(right_parts(TRANSCRIPTIONS)).content + b"epilogue\r\n"
    assert send(http, TRANSCRIPTIONS, Body(content)).json()["text"] == "one two three"


def test_a_body_that_ends_before_its_closing_boundary_is_refused(http: httpx2.Client) -> None:
    """Fields that follow would be lost."""
    content = body(right_parts(TRANSCRIPTIONS)).content.removesuffix(b"--\r\n")
    answer = send(http, TRANSCRIPTIONS, Body(content))
    assert answer.status_code == 400 and "closing boundary" in answer.json()["error"]["message"]
