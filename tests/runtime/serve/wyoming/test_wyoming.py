"""Speech and transcripts over the Wyoming protocol, with the client of the package `wyoming`."""

import asyncio

import numpy as np
import pytest
from support.serve.tone_speech import FRAME
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
from wyoming.event import Event, Eventable
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


def in_pieces(text: str, size: int, voice: str | None = None) -> list[Eventable]:
    """The events of Home Assistant, which repeats the whole text."""
    pieces = [SynthesizeChunk(text[start : start + size]) for start in range(0, len(text), size)]
    return [SynthesizeStart(SynthesizeVoice(voice)), *pieces, Synthesize(text), SynthesizeStop()]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_text_that_arrives_in_pieces_is_spoken_like_the_whole_text(size: int) -> None:
    sent = in_pieces(TEXT, size, "bob")
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


@pytest.mark.parametrize("text", ["👍", "...", "", "---"])
def test_a_text_without_a_word_is_silence(text: str) -> None:
    """Whole and in pieces. The next text is spoken on the same connection."""
    with wyoming_fixture() as fixture:
        for end, kinds in ((END_OF_SPEECH, []), (END_OF_TEXT, ["synthesize-stopped"])):
            requests = [[Synthesize(each)] if not kinds else in_pieces(each, 1000) for each in (text, TEXT)]
            silence, speech = conversation(fixture, *requests[0], *requests[1], until=end, answers=2)
            assert types(silence) == ["audio-start", "audio-chunk", "audio-stop", *kinds]
            assert len(sound(silence)) == 2 * FRAME and not any(sound(silence))
            assert sound(speech) == spoken(TEXT)


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
