"""Names of models and voices that belong to other services, to the operator, or are written otherwise."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx2
import openai
import pytest
from support.serve.http_server import RunningServer, Tasks, running
from support.serve.loud_to_text import LoudToText
from support.serve.recordings import three_words
from support.serve.tone_speech import ToneSpeech, tone

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.aliases import VOICES, Aliases
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models

ALIASES = Aliases({"reader": "second"}, {"Narrator": "bob"})
SPEAKS = (
    *("tone", "TONE", "openai/tone", "openai:tone", "tts-1", "tts-1-hd", "tts-1-1106", "gpt-4o-mini-tts"),
    *("gpt-4o-mini-tts-2025-12-15", "openai/tts-1", "GPT-4o-mini-TTS"),
    *("voxtral-mini-tts-2603", "voxtral-mini-tts-latest", "voxtral-mini-tts-3"),
)
TRANSCRIBES = (
    *("loud", "whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
    *("gpt-4o-mini-transcribe-2025-12-15", "gpt-realtime-whisper", "gpt-live-transcribe", "groq/whisper-1"),
    *("voxtral-mini-latest", "voxtral-mini-2507", "voxtral-mini-transcribe-realtime-2602"),
)
WRONG = ("other", "second/other", "tts-2", "tts-1-x", "whisper-1x", "gpt-4o-transcribe-diarize", "x" * 1000)


class DesigningSpeech(ToneSpeech):
    """Chooses its voice."""

    def bundle_voices(self) -> list[str]:
        return []


class CloningSpeech(DesigningSpeech):
    """Needs a voice, and has none."""

    def default_bundle_voice(self) -> str | None:
        raise UsageError("voice: name one", field="voice")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    recordings, live = LoudToText(is_live=False), LoudToText()
    tasks: Tasks = {"recordings": recordings, "tone": ToneSpeech(), "second": ToneSpeech(), "loud": live}
    with running(tasks, aliases=ALIASES) as started:
        yield started


def speak(server: RunningServer, **fields: Any) -> httpx2.Response:
    body = {"model": "tone", "input": "Hi.", "response_format": "pcm", **fields}
    return httpx2.post(f"{server.url}/v1/audio/speech", json=body)


@pytest.mark.parametrize("name", SPEAKS)
def test_a_name_of_another_service_speaks(server: RunningServer, name: str) -> None:
    assert server.models.speech_worker(name).name == "tone"


@pytest.mark.parametrize("name", TRANSCRIBES)
def test_a_name_of_another_service_transcribes(server: RunningServer, name: str) -> None:
    assert server.models.live_worker(name).name == "loud"
    assert server.models.transcription_worker(name).name == ("loud" if name == "loud" else "recordings")


@pytest.mark.parametrize("name", [*WRONG, "whisper-1", "loud"])
def test_any_other_name_is_refused(server: RunningServer, name: str) -> None:
    answer = speak(server, model=name)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert len(error["message"]) < 200 and "tone, second" in error["message"]


def test_the_operator_names_bundles_and_voices(server: RunningServer) -> None:
    answer = speak(server, model="Reader", voice="narrator")
    assert answer.headers["x-voxport-voice"] == "bob" and answer.content == pcm16(tone("Hi.", "bob"))
    for wrong in ({"reader": "missing"}, {"tone": "second"}):
        with pytest.raises(UsageError, match=r"alias: .*tone, second") as raised:
            Aliases(wrong).check(["tone", "second"])
        assert raised.value.field == "alias"


def test_an_alias_of_a_voice_that_no_bundle_has_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    aliases = Aliases(voices={"narrator": "bob", "reader": "bop"})
    Models({"tone": ToneSpeech(), "loud": LoudToText()}, Limits(), aliases=aliases)
    assert [line for line in caplog.messages if "alias" in line] == [
        "voice alias reader=bop: no bundle has this voice"
    ]


def test_a_model_that_names_speakers_is_refused_with_the_reason(server: RunningServer) -> None:
    files, fields = {"file": ("a.flac", three_words())}, {"model": "gpt-4o-transcribe-diarize"}
    answer = httpx2.post(f"{server.url}/v1/audio/transcriptions", data=fields, files=files)
    assert answer.status_code == 404 and "none that names speakers" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "voice, spoken",
    [
        *((name, ("anna", "bob")[index % 2]) for index, name in enumerate(VOICES)),
        *(("Anna", "anna"), ("BOB", "bob"), ("Alloy", "anna"), ({"id": "ash"}, "bob")),
        *(
            ("en_paul_neutral", "anna"),
            ("gb_jane_sad", "bob"),
            ("gb_oliver_happy", "anna"),
            ("fr_marie_neutral", "bob"),
        ),
    ],
)
def test_voices_of_other_services_are_voices_of_the_bundle_in_order(
    server: RunningServer, voice: object, spoken: str
) -> None:
    answer = speak(server, voice=voice)
    assert answer.headers["x-voxport-voice"] == spoken and answer.content == pcm16(tone("Hi.", spoken))
    assert "x-voxport-ignored" not in answer.headers


def test_a_bundle_without_voices_takes_the_name_as_a_hint_or_asks_for_a_voice() -> None:
    with running({"tone": DesigningSpeech()}) as server:
        answer = speak(server, voice="alloy")
        assert answer.status_code == 200 and answer.headers["x-voxport-ignored"] == "voice"
        assert "x-voxport-voice" not in answer.headers
        message = speak(server, voice="zoe").json()["error"]["message"]
        assert message == "voice: tone has no voices; leave voice out and describe it in instructions"
    with running({"tone": CloningSpeech()}) as server:
        for voice in ("alloy", "zoe", None):
            error = speak(server, voice=voice).json()["error"]
            assert (error["code"], error["param"]) == ("voice_not_found", "voice")
            assert "none" not in error["message"]


def test_messages_are_short_with_a_thousand_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"voice{index}" for index in range(1000)]
    monkeypatch.setattr(ToneSpeech, "bundle_voices", lambda _: names)
    with running({"tone": ToneSpeech()}) as server:
        message = speak(server, voice="zoe").json()["error"]["message"]
    assert "voice0" in message and "and 990 more" in message and len(message) < 200


def test_aliases_are_listed_behind_what_they_mean(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    models = list(client.models.list())
    assert [each.id for each in models[:4]] == ["tone", "second", "recordings", "loud"]
    meant = {each.id: each.to_dict().get("alias_of") for each in models}
    assert meant["reader"] == "second" and meant["tts-1"] == "tone" and meant["whisper-1"] == "recordings"
    assert all(each.created > 1.7e9 for each in models)
    for name in ("tone", "tts-1", "openai/tts-1"):
        found = client.models.retrieve(name).to_dict()
        assert found["id"] == name and found["task"] == "text-to-speech"
        assert [each["name"] for each in found["voices"]] == ["anna", "bob"]  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    voices = httpx2.get(f"{server.url}/v1/audio/voices?model=tone").json()["voices"]
    assert [each["id"] for each in voices[:3]] == ["anna", "bob", "Narrator"]
    assert {each["id"]: each["alias_of"] for each in voices[2:]}.items() >= {
        "Narrator": "bob",
        "ash": "bob",
    }.items()


def test_lists_of_voices_have_pages(server: RunningServer) -> None:
    url = f"{server.url}/v1/audio/voices?model=tone"
    whole = httpx2.get(url).json()
    times = {datetime.fromisoformat(each["created_at"]) for each in whole["items"]}
    assert all(time.tzinfo and time.year >= 2025 for time in times)
    assert whole["total"] == len(whole["items"]) == whole["page_size"] and whole["total_pages"] == 1
    page = httpx2.get(f"{url}&limit=5&offset=5").json()
    assert page["items"] == whole["items"][5:10] and page["page"] == 2
    assert page["total_pages"] == -(-whole["total"] // 5)
    assert httpx2.get(f"{url}&type=custom").json()["total"] == 0
