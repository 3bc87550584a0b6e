"""Both clients of the OpenAI API, the blocking one and the one of asyncio, use every form of an answer."""

import asyncio
import base64
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
)
from support.serve.http_server import running
from support.serve.loud_to_text import LoudToText
from support.serve.recordings import three_words
from support.serve.tone_speech import ToneSpeech, tone

from voxport.runtime.audio.files import pcm16

TEXT, WORDS = "Hello there.", "one two three"
SPEECH: dict[str, Any] = {"model": "tone", "voice": "anna", "input": TEXT, "response_format": "pcm"}
Client = openai.OpenAI | openai.AsyncOpenAI
Use = Callable[[Client], Awaitable[Any]]
Used = Callable[[Use], Any]  # runs a coroutine function for a client


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running({"tone": ToneSpeech(pass_s=0.005), "loud": LoudToText()}) as server:
        yield f"{server.url}/v1"


@pytest.fixture(params=[openai.OpenAI, openai.AsyncOpenAI])
def used(request: pytest.FixtureRequest, url: str) -> Used:
    """What a coroutine function returns for the client."""

    async def use(function: Use) -> object:
        client = request.param(base_url=url, api_key="none", max_retries=0)
        async with opened(client):
            return await function(client)

    return lambda function: asyncio.run(use(function))


async def result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def opened(manager: Any) -> AsyncIterator[Any]:
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


async def collected(values: Any) -> list[Any]:
    return [each async for each in values] if hasattr(values, "__aiter__") else list(values)


def transcribe(client: Client, **fields: Any) -> Awaitable[Any]:
    return result(
        client.audio.transcriptions.create(model="loud", file=("talk.flac", three_words()), **fields)
    )


def test_raw_speech_comes_in_pieces(used: Used) -> None:
    async def speak(client: Client) -> list[bytes]:
        async with opened(client.audio.speech.with_streaming_response.create(**SPEECH)) as response:
            return await collected(response.iter_bytes())

    pieces = used(speak)
    assert b"".join(pieces) == pcm16(tone(TEXT)) and len(pieces) > 1


def test_events_of_speech_hold_the_samples(used: Used) -> None:
    async def speak(client: Client) -> list[str]:
        asked = client.audio.speech.with_streaming_response.create(**SPEECH, stream_format="sse")
        async with opened(asked) as response:
            return await collected(response.iter_lines())

    events = [json.loads(line[6:]) for line in used(speak) if line.startswith("data: ")]
    assert b"".join(base64.b64decode(each["audio"]) for each in events[:-1]) == pcm16(tone(TEXT))
    usage = {"input_tokens": 12, "output_tokens": 12, "total_tokens": 24}
    assert events[-1] == {"type": "speech.audio.done", "usage": usage, "ended": "end", "seed": 0}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", f"{WORDS}\n"),
        ("srt", f"1\n00:00:00,000 --> 00:00:00,400\n{WORDS}\n"),
        ("vtt", f"WEBVTT\n\n00:00:00.000 --> 00:00:00.400\n{WORDS}\n"),
    ],
)
def test_transcripts_that_are_text(used: Used, name: str, expected: str) -> None:
    found = used(lambda client: transcribe(client, response_format=name))
    assert isinstance(found, str) and found.strip() == expected.strip()


def test_transcripts_that_are_json(used: Used) -> None:
    found = used(lambda client: transcribe(client, response_format="json"))
    assert isinstance(found, Transcription) and found.text == WORDS
    options = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
    verbose = used(lambda client: transcribe(client, **options))
    assert isinstance(verbose, TranscriptionVerbose) and verbose.text == WORDS
    assert verbose.words and verbose.segments
    assert [(each.word, each.start) for each in verbose.words] == [("one", 0), ("two", 0.16), ("three", 0.32)]
    assert [each.text for each in verbose.segments] == [WORDS]


def test_events_of_a_transcript_are_typed(used: Used) -> None:
    async def events(client: Client) -> list[Any]:
        return await collected(await transcribe(client, stream=True))

    *deltas, last = used(events)
    assert len(deltas) == 3 and all(isinstance(each, TranscriptionTextDeltaEvent) for each in deltas)
    assert "".join(each.delta for each in deltas) == WORDS
    assert isinstance(last, TranscriptionTextDoneEvent) and last.text == WORDS


def test_a_refusal_is_the_exception_of_its_status(used: Used) -> None:
    """Before and after the answer is opened as a stream."""

    async def speak(client: Client) -> list[str | None]:
        codes = []
        for asked in (
            lambda: result(client.audio.speech.create(**SPEECH | {"model": "other"})),
            lambda: first_of(client.audio.speech.with_streaming_response.create(**SPEECH | {"voice": "x"})),
        ):
            with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as found:
                await asked()
            codes.append(found.value.code)
        return codes

    async def first_of(asked: Any) -> None:
        async with opened(asked):
            pass

    assert used(speak) == ["model_not_found", "voice_not_found"]
