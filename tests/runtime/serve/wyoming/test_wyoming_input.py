"""Events of the Wyoming protocol that are wrong."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serve.loud_to_text import FrenchToText
from support.serve.wyoming_fixture import (
    END_OF_SPEECH,
    END_OF_TRANSCRIPT,
    TEXT,
    WyomingFixture,
    answers,
    ask,
    conversation,
    sound,
    spoken,
    until_true,
    wyoming_fixture,
)
from wyoming.asr import Transcribe
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event, async_read_event
from wyoming.info import SelectProgram
from wyoming.ping import Ping
from wyoming.tts import Synthesize

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.wyoming.events import EventReader, read_event


def header(**fields: object) -> bytes:
    return json.dumps({"type": "describe", **fields}).encode() + b"\n"


def line(kind: str, **data: object) -> bytes:
    return header(type=kind, data=data)


AUDIO = {"rate": 16000, "width": 2, "channels": 1}
BAD = {
    "a payload of 1 TiB": (header(payload_length=2**40), "event_too_large"),
    "a payload above the limit": (header(payload_length=2**20 + 1), "event_too_large"),
    "a payload of x": (header(payload_length="x"), "invalid_event"),
    "data above the limit": (header(data_length=2**20 + 1), "event_too_large"),
    "data that is not JSON": (header(data_length=3) + b"{{{", "invalid_event"),
    "data that is a list": (header(data_length=3) + b"[1]", "invalid_event"),
    "inline data that is a list": (header(data=[1]), "invalid_event"),
    "a header above 64 KiB": (header(more="x" * 70_000), "invalid_event"),
    "a long header without an end": (b"x" * 200_000, "invalid_event"),
    "an HTTP request": (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n" + header(), "invalid_event"),
    "a header that is a number": (b"5\n", "invalid_event"),
    "a deep header": (b"[" * 60_000 + b"\n", "invalid_event"),
    "no type": (b"{}\n", "invalid_event"),
    "a type that is a number": (header(type=5), "invalid_event"),
    "no text": (line("synthesize"), "invalid_event"),
    "a text that is a list": (line("synthesize", text=["a"]), "invalid_event"),
    "a voice that is a text": (line("synthesize", text="a", voice="anna"), "invalid_event"),
    "a long text": (line("synthesize", text="a " * 2049), "string_above_max_length"),
    "an empty text": (line("synthesize", text=""), "invalid_value"),
    "NUL": (line("synthesize", text="a\0b"), "invalid_value"),
    "another script": (line("synthesize", text="你好"), "invalid_value"),
    "another script in pieces": (
        line("synthesize-start") + line("synthesize-chunk", text="Привет") + line("synthesize-stop"),
        "invalid_value",
    ),
    "SSML": (line("synthesize", text="<a/>", text_format="ssml"), "invalid_value"),
    "an unknown voice": (line("synthesize", text="a", voice={"name": "../x"}), "voice_not_found"),
    "a speaker": (line("synthesize", text="a", voice={"name": "anna", "speaker": "b"}), "voice_not_found"),
    "an unknown language": (line("synthesize", text="a", voice={"language": "xx"}), "language_not_found"),
    "a piece before its start": (line("synthesize-chunk", text="a"), "invalid_event"),
    "a stop before its start": (line("synthesize-stop"), "invalid_event"),
    "two starts": (2 * line("synthesize-start"), "invalid_event"),
    "an empty text in pieces": (line("synthesize-start") + line("synthesize-stop"), "invalid_value"),
    "a long text in pieces": (
        line("synthesize-start") + 3 * line("synthesize-chunk", text="a" * 2000),
        "string_above_max_length",
    ),
    "an unknown model": (line("transcribe", name="other"), "model_not_found"),
    "a model that speaks": (line("transcribe", name="tts"), "model_not_found"),
    "a language that the model does not have": (line("transcribe", language="fr-FR"), "invalid_value"),
    "a language that is a number": (line("transcribe", language=5), "invalid_event"),
    "odd audio": (header(type="audio-chunk", data=AUDIO, payload_length=3) + b"abc", "invalid_audio"),
    "half a frame": (
        header(type="audio-chunk", data=AUDIO | {"channels": 2}, payload_length=2) + b"ab",
        "invalid_audio",
    ),
    "audio of 24 bits": (line("audio-start", **AUDIO | {"width": 3}), "invalid_audio"),
    "audio of rate 0": (line("audio-start", **AUDIO | {"rate": 0}), "invalid_audio"),
    "audio of no channels": (line("audio-start", **AUDIO | {"channels": 0}), "invalid_audio"),
    "audio without a rate": (line("audio-start", width=2, channels=1), "invalid_event"),
    "a stop before audio": (line("audio-stop"), "invalid_event"),
    "audio that changes its rate": (
        line("audio-start", **AUDIO) + line("audio-chunk", **AUDIO | {"rate": 8000}),
        "invalid_event",
    ),
}


def test_bad_input_gets_an_error_and_the_server_goes_on() -> None:
    """Each on a connection of its own, which ends after the error."""

    async def scenario(fixture: WyomingFixture) -> dict[str, str | None]:
        found = {}
        async with fixture.client() as client:
            for name, (content, _) in BAD.items():
                reader, writer = await asyncio.open_connection("127.0.0.1", fixture.port)
                writer.write(content)
                events = await answers(lambda: async_read_event(reader), ())
                assert await reader.read() == b""
                writer.close()
                found[name] = events[-1].data.get("code") if events else None
            whole = await ask(client, Synthesize(TEXT), until=END_OF_SPEECH)
            assert sound(whole) == spoken(TEXT)
        await until_true(lambda: fixture.speech_worker.is_idle and fixture.transcription_worker.is_idle)
        assert fixture.models.is_ready
        return found

    with wyoming_fixture() as fixture:
        assert asyncio.run(scenario(fixture)) == {name: code for name, (_, code) in BAD.items()}


LENGTHS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3)
FIELDS = {
    "type": st.sampled_from(("describe", "synthesize", "audio-chunk")) | st.none() | st.integers(),
    "data": st.none()
    | st.dictionaries(st.text(max_size=3), st.none() | st.integers(), max_size=2)
    | st.text(),
    "data_length": LENGTHS | st.just(2),
    "payload_length": LENGTHS | st.just(2),
}


@settings(max_examples=50)
@given(st.fixed_dictionaries({}, optional=FIELDS), st.binary(max_size=8) | st.just(b"{}ab"))
def test_any_header_is_an_event_an_error_or_the_end(fields: dict[str, Any], rest: bytes) -> None:
    async def read() -> Event | None:
        reader = EventReader()
        reader.feed_data(json.dumps(fields).encode() + b"\n" + rest)
        reader.feed_eof()
        return await read_event(reader)

    try:
        event = asyncio.run(read())
    except ApiError as error:
        assert error.status == 400
    else:
        assert event is None or (event.type == fields["type"] and isinstance(event.data, dict))


@pytest.mark.parametrize("begin", [AudioStart(16000, 2, 1), AudioChunk(16000, 2, 1, b"\0\0" * 1280)])
def test_the_language_is_checked_for_the_model_of_the_audio(begin: AudioStart | AudioChunk) -> None:
    """A model may be selected after the language. A language belongs to one audio only."""
    english, to_french = Transcribe(language="en"), SelectProgram("french")
    with wyoming_fixture(french=FrenchToText()) as fixture:
        sent = [english, to_french, SelectProgram("stt"), begin, AudioStop(), to_french, begin, AudioStop()]
        *_, last = conversation(fixture, *sent, until=END_OF_TRANSCRIPT, answers=2)
        assert last[-1].type == "transcript-stop"
        ((error,),) = conversation(fixture, english, to_french, begin, Ping(), until=("pong",))
        assert error.data["code"] == "invalid_value" and "expected one of fr" in error.data["text"]
        ((pong,),) = conversation(fixture, Transcribe(language=""), Ping(), until=("pong",))
        assert pong.type == "pong"


def test_an_unknown_event_gets_an_error_and_the_connection_goes_on() -> None:
    async def scenario(fixture: WyomingFixture) -> list[Event]:
        async with fixture.client() as client:
            await client.write_event(Event("run-pipeline", {"a": 1}, b"payload"))
            return [*await answers(client.read_event, ()), *await ask(client, Ping(), until=("pong",))]

    with wyoming_fixture() as fixture:
        error, pong = asyncio.run(scenario(fixture))
    assert error.data["code"] == "unknown_event" and "run-pipeline" in error.data["text"]
    assert pong.type == "pong"
