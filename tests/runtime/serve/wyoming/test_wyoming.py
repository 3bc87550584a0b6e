"""Speech and transcripts over the Wyoming protocol, with the client of the package `wyoming`."""

import asyncio

import numpy as np
import pytest
from support.serve.wyoming_fixture import (
    END_OF_SPEECH,
    END_OF_TEXT,
    END_OF_TRANSCRIPT,
    TEXT,
    WyomingFixture,
    ask,
    chunks,
    conversation,
    sound,
    spoken,
    tone,
    types,
    wyoming_fixture,
)
from wyoming.asr import Transcribe
from wyoming.event import Event
from wyoming.info import Describe, Info, SelectProgram
from wyoming.ping import Ping
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeVoice,
)

# Programs


def test_describe_lists_programs_voices_and_languages() -> None:
    with wyoming_fixture() as fixture:
        ((event,),) = conversation(fixture, Describe(), until=("info",))
    info = Info.from_event(event)
    (tts,), (asr,) = info.tts, info.asr
    assert tts.name == "tts" and tts.installed and tts.supports_synthesize_streaming
    assert {voice.name: voice.languages for voice in tts.voices} == {"anna": ["en"], "bob": ["fr"]}
    assert asr.name == "stt" and asr.supports_transcript_streaming and asr.requires_external_vad
    assert [(model.name, model.languages) for model in asr.models] == [("stt", ["en"])]


def test_ping_and_select_program() -> None:
    async def scenario(fixture: WyomingFixture) -> list[Event]:
        async with fixture.client() as client:
            selected = [SelectProgram("tts"), SelectProgram("stt")]
            found = await ask(client, *selected, Ping("here"), until=("pong",))
            return [*found, *await ask(client, SelectProgram("other"), until=())]

    with wyoming_fixture() as fixture:
        pong, error = asyncio.run(scenario(fixture))
    assert (pong.type, pong.data) == ("pong", {"text": "here"})
    assert error.data["code"] == "model_not_found"


# Speech


@pytest.mark.parametrize(
    ("voice", "name"),
    [(None, None), (SynthesizeVoice("bob"), "bob"), (SynthesizeVoice(language="fr-FR"), "bob")],
)
def test_synthesize_sends_the_speech_of_the_task(voice: SynthesizeVoice | None, name: str | None) -> None:
    with wyoming_fixture() as fixture:
        (events,) = conversation(fixture, Synthesize(TEXT, voice), until=END_OF_SPEECH)
    assert types(events) == ["audio-start", "audio-chunk", "audio-stop"]
    assert events[0].data["rate"] == 24000 and events[0].data["width"] == 2
    assert sound(events) == spoken(TEXT, name)


def test_texts_without_a_word_are_silence_and_the_next_one_is_spoken() -> None:
    empty = SynthesizeStart(), SynthesizeStop()
    requests = Synthesize("\U0001f44d"), Synthesize(""), *empty, Synthesize("Hello.")
    with wyoming_fixture() as fixture:
        *silent, hello = conversation(fixture, *requests, until=END_OF_SPEECH, answers=4)
    assert [sound(events) for events in silent] == 3 * [bytes(2 * 1920)]
    assert sound(hello) == spoken("Hello.")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_text_that_arrives_in_pieces_is_spoken_like_the_whole_text(size: int) -> None:
    pieces = [SynthesizeChunk(TEXT[start : start + size]) for start in range(0, len(TEXT), size)]
    sent = [SynthesizeStart(SynthesizeVoice("bob")), *pieces, Synthesize(TEXT), SynthesizeStop()]
    with wyoming_fixture() as fixture:
        (events,) = conversation(fixture, *sent, until=END_OF_TEXT)
    assert types(events) == ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]
    assert sound(events) == spoken(TEXT, "bob")


def test_a_sentence_is_spoken_before_the_text_ends() -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client() as client:
            (begun,) = await ask(
                client, SynthesizeStart(), SynthesizeChunk(TEXT[:120]), until=("audio-start",)
            )
            assert begun.type == "audio-start"
            await ask(client, SynthesizeChunk(TEXT[120:]), SynthesizeStop(), until=END_OF_TEXT)

    with wyoming_fixture() as fixture:
        asyncio.run(scenario(fixture))


def test_requests_of_one_connection_are_answered_in_order() -> None:
    texts = ("First.", "Second.", "Third.")

    with wyoming_fixture() as fixture:
        found = conversation(fixture, *map(Synthesize, texts), until=END_OF_SPEECH, answers=len(texts))
    assert [sound(events) for events in found] == [spoken(text) for text in texts]


# Transcripts


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("channels", [1, 2])
def test_audio_gives_its_transcript_in_pieces_and_whole(is_live: bool, channels: int) -> None:
    audio = np.frombuffer(tone("..x..xx."), "<i2").repeat(channels).tobytes()
    sent = [Transcribe("stt", language="en"), *chunks(audio, channels=channels)]
    with wyoming_fixture(is_live) as fixture:
        (events,) = conversation(fixture, *sent, until=END_OF_TRANSCRIPT)
    assert types(events) == ["transcript-start", "transcript-chunk", "transcript", "transcript-stop"]
    assert events[-2].data == {"text": "one two three"}
    assert "".join(e.data["text"] for e in events if e.type == "transcript-chunk") == "one two three"


def test_audio_of_another_rate_is_resampled() -> None:
    loud = np.frombuffer(tone("..x.."), "<i2").repeat(3).tobytes()
    with wyoming_fixture() as fixture:
        (events,) = conversation(fixture, *chunks(loud, rate=48000), until=END_OF_TRANSCRIPT)
    assert events[-2].data["text"].startswith("one")


def test_silence_and_no_audio_give_an_empty_transcript() -> None:
    sent = [*chunks(tone("....")), *chunks(b"")]
    with wyoming_fixture() as fixture:
        found = conversation(fixture, *sent, until=END_OF_TRANSCRIPT, answers=2)
    assert [events[-2].data["text"] for events in found] == ["", ""]
