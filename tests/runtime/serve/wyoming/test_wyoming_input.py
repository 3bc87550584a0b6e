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
    types,
    until_true,
    wyoming_fixture,
)
from wyoming.asr import Transcribe
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event, async_read_event
from wyoming.info import SelectProgram
from wyoming.tts import Synthesize

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.wyoming.events import EventReader, read_event


def header(**fields: object) -> bytes:
    return json.dumps({"type": "describe", **fields}).encode() + b"\n"


def line(kind: str, **data: object) -> bytes:
    return header(type=kind, data=data)


def chunk(content: bytes = b"ab" * 1280, **form: int) -> bytes:
    return header(type="audio-chunk", data=AUDIO | form, payload_length=len(content)) + content


BEGINNINGS = ("transcript-start", "audio-start", "audio-chunk")
AUDIO = {"rate": 16000, "width": 2, "channels": 1}
NO_EVENT = {  # the connection ends, because the next event cannot be found
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
}
SPEECH, STREAM, TRANSCRIPT = (
    ["audio-stop"],
    ["audio-stop", "synthesize-stopped"],
    ["transcript", "transcript-stop"],
)
START, STOP, AUDIO_STOP = line("synthesize-start"), line("synthesize-stop"), line("audio-stop")
WRONG = {  # whole requests: content, code of the error, the events that follow it
    "a text that is a list": (line("synthesize", text=["a"]), "invalid_event", SPEECH),
    "a voice that is a text": (line("synthesize", text="a", voice="anna"), "invalid_event", SPEECH),
    "a long text": (line("synthesize", text="a " * 2049), "string_above_max_length", SPEECH),
    "NUL": (line("synthesize", text="a\0b"), "invalid_value", SPEECH),
    "another script": (line("synthesize", text="你好"), "invalid_value", SPEECH),
    "another script in pieces": (
        START + line("synthesize-chunk", text="Привет") + STOP,
        "invalid_value",
        STREAM,
    ),
    "SSML": (line("synthesize", text="<a/>", text_format="ssml"), "invalid_event", SPEECH),
    "an unknown voice": (line("synthesize", text="a", voice={"name": "../x"}), "voice_not_found", SPEECH),
    "an unknown voice of a text in pieces": (
        line("synthesize-start", voice={"name": "x"})
        + line("synthesize-chunk", text="a")
        + line("synthesize", text="a")
        + STOP,
        "voice_not_found",
        STREAM,
    ),
    "a piece that is a list": (
        START + 2 * line("synthesize-chunk", text=["a"]) + line("synthesize", text="a") + STOP,
        "invalid_event",
        STREAM,
    ),
    "a piece before its start": (line("synthesize-chunk", text="a") + STOP, "invalid_event", STREAM),
    "a stop before its start": (STOP, "invalid_event", STREAM),
    "two starts": (2 * START + line("synthesize-chunk", text="a") + STOP, "invalid_event", STREAM),
    "an unknown model": (
        line("transcribe", name="other") + chunk() + AUDIO_STOP,
        "model_not_found",
        TRANSCRIPT,
    ),
    "a model that speaks": (line("transcribe", name="tts") + AUDIO_STOP, "model_not_found", TRANSCRIPT),
    "a language that is a number": (
        line("transcribe", language=5) + chunk() + AUDIO_STOP,
        "invalid_event",
        TRANSCRIPT,
    ),
    "odd audio": (2 * chunk(b"abc") + AUDIO_STOP, "invalid_audio", TRANSCRIPT),
    "half a frame": (chunk(b"ab", channels=2) + AUDIO_STOP, "invalid_audio", TRANSCRIPT),
    "audio of 24 bits": (
        line("audio-start", **AUDIO | {"width": 3}) + 2 * chunk(width=3) + AUDIO_STOP,
        "invalid_audio",
        TRANSCRIPT,
    ),
    "audio of rate 0": (line("audio-start", **AUDIO | {"rate": 0}) + AUDIO_STOP, "invalid_audio", TRANSCRIPT),
    "audio of no channels": (chunk(channels=0) + AUDIO_STOP, "invalid_audio", TRANSCRIPT),
    "audio without a rate": (
        line("audio-start", width=2, channels=1) + AUDIO_STOP,
        "invalid_event",
        TRANSCRIPT,
    ),
    "a stop before audio": (AUDIO_STOP, "invalid_event", TRANSCRIPT),
    "audio that changes its rate": (
        line("audio-start", **AUDIO) + 3 * chunk(rate=8000) + AUDIO_STOP,
        "invalid_event",
        TRANSCRIPT,
    ),
    "no event": (line("run-pipeline", a=1), "unknown_event", []),
    "a program that is unknown": (line("select-program", name="x"), "model_not_found", []),
}


def test_what_is_no_event_ends_its_connection_only() -> None:
    async def scenario(fixture: WyomingFixture) -> dict[str, str | None]:
        found = {}
        async with fixture.client() as client:
            for name, (content, _) in NO_EVENT.items():
                reader, writer = await asyncio.open_connection("127.0.0.1", fixture.port)
                writer.write(content)
                events = await answers(lambda: async_read_event(reader), ())
                assert await reader.read() == b""
                writer.close()
                found[name] = events[-1].data.get("code") if events else None
            whole = await ask(client, Synthesize(TEXT), until=END_OF_SPEECH)
            assert sound(whole) == spoken(TEXT)
        return found

    with wyoming_fixture() as fixture:
        assert asyncio.run(scenario(fixture)) == {name: code for name, (_, code) in NO_EVENT.items()}


def test_after_a_wrong_request_the_connection_goes_on() -> None:
    """An error, the events that clients wait for, and the answer to the next request. Nothing else."""
    next_speech = ["audio-start", "audio-chunk", "audio-stop"]

    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client():
            reader, writer = await asyncio.open_connection("127.0.0.1", fixture.port)
            for name, (content, code, endings) in WRONG.items():
                writer.write(content + line("synthesize", text="Next."))
                events: list[Event] = []
                while types(events)[-3:] != next_speech:
                    events += await answers(lambda: async_read_event(reader), END_OF_SPEECH)
                kinds = [kind for kind in types(events)[:-3] if kind not in BEGINNINGS]
                assert kinds == ["error", *endings], name
                (error,) = [event for event in events if event.type == "error"]
                assert error.data["code"] == code, name
                assert sound(events) == spoken("Next."), name
            writer.close()
        await until_true(lambda: fixture.speech_worker.is_idle and fixture.transcription_worker.is_idle)
        assert fixture.models.is_ready

    with wyoming_fixture() as fixture:
        asyncio.run(scenario(fixture))


HINTS = {
    "a speaker": ({"name": "Bob", "speaker": "b"}, ["voice.speaker"], "bob"),
    "a voice in another case": ({"name": "ANNA"}, None, "anna"),
    "an unknown language": ({"language": "xx"}, ["voice.language"], "anna"),
    "a language that the voice does not speak": (
        {"name": "bob", "language": "en-US"},
        ["voice.language"],
        "bob",
    ),
    "empty texts": ({"name": "", "language": None}, None, "anna"),
}


@pytest.mark.parametrize("name", HINTS)
def test_hints_are_ignored_and_named(name: str) -> None:
    voice, ignored, speaker = HINTS[name]
    data = {"text": TEXT, "voice": voice, "text_format": None}
    with wyoming_fixture() as fixture:
        (events,) = conversation(fixture, Event("synthesize", data), until=END_OF_SPEECH)
        assert events[0].data.get("ignored") == ignored and sound(events) == spoken(TEXT, speaker)
        fixture.models.is_strict = True
        ((first, *_),) = conversation(fixture, Event("synthesize", data), until=END_OF_SPEECH)
        assert (first.type == "error") == (ignored is not None)


UNKNOWN_FIELDS: dict[str, list[Event]] = {
    "ping": [Event("ping", {"extra": 1})],
    "describe": [Event("describe", {"extra": 1})],
    "select-program": [Event("select-program", {"name": "stt", "extra": 1}), Event("ping")],
    "a piece of a text": [
        Event("synthesize-start"),
        Event("synthesize-chunk", {"text": TEXT, "extra": 1}),
        Event("synthesize-stop"),
    ],
    "the end of a text": [
        Event("synthesize-start"),
        Event("synthesize-chunk", {"text": TEXT}),
        Event("synthesize-stop", {"extra": 1}),
    ],
    "the start of audio": [
        Event("audio-start", {"rate": 16000, "width": 2, "channels": 1, "extra": 1}),
        Event("audio-stop"),
    ],
    "the end of audio": [
        AudioStart(16000, 2, 1).event(),
        Event("audio-stop", {"timestamp": 1, "extra": 1}),
    ],
}


@pytest.mark.parametrize("name", UNKNOWN_FIELDS)
def test_an_unknown_field_of_an_event_is_named(name: str) -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client() as client:
            for sent in UNKNOWN_FIELDS[name]:
                await client.write_event(sent)
            event: Event | None = await client.read_event()
            while event and event.type != "error" and "ignored" not in event.data:
                event = await client.read_event()
            assert event
            if fixture.models.is_strict:
                assert event.type == "error" and "extra" in event.data["text"]
            else:
                assert event.data["ignored"] == ["extra"]

    with wyoming_fixture() as fixture:
        for fixture.models.is_strict in (False, True):
            asyncio.run(scenario(fixture))


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
def test_the_language_is_compared_with_the_model_of_the_audio(begin: AudioStart | AudioChunk) -> None:
    """A model may be selected after the language. A language belongs to one audio only."""
    english, to_french = Transcribe(language="en", transcript_names=["Anna"]), SelectProgram("french")
    sent = [english, to_french, SelectProgram("stt"), begin, AudioStop()]
    sent += [english, to_french, begin, AudioStop(), begin, AudioStop()]
    with wyoming_fixture(french=FrenchToText()) as fixture:
        found = conversation(fixture, *sent, until=END_OF_TRANSCRIPT, answers=3)
        expected = [["transcript_names"], ["transcript_names", "language"], None]
        assert [events[0].data.get("ignored") for events in found] == expected
        fixture.models.is_strict = True
        french = Transcribe(language="fr")
        ((error,),) = conversation(fixture, french, begin, AudioStop(), until=END_OF_TRANSCRIPT)
        assert error.data["code"] == "invalid_value" and "expected one of en" in error.data["text"]
