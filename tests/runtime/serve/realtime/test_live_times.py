"""Times of words in live transcription: those that the same sound has as a recording."""

import asyncio
import io
import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from support.runtime.toy_realtime import CONSTANTS, DELAYS_MS, noise_of_varying_level, task_with_many_words
from support.serve.http_server import RunningServer, running
from support.serve.realtime_client import MISTRAL, VLLM, Socket, talk, text_of

RATE = CONSTANTS.sample_rate
SOUND = noise_of_varying_level(47952)  # 2.997 s
DELAYS = dict(zip(("minimal", "xhigh"), DELAYS_MS, strict=True))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"toy": task_with_many_words()}) as started:
        yield started


def blocks() -> list[str]:
    """Messages of 100 ms, which are no whole number of tokens."""
    return [text_of(block.tobytes()) for block in np.split(SOUND, range(1600, len(SOUND), 1600))]


def recorded_words(url: str, delay_ms: int) -> list[dict[str, Any]]:
    file = io.BytesIO()
    soundfile.write(file, SOUND, RATE, format="WAV")
    found = openai.OpenAI(base_url=url, api_key="none").audio.transcriptions.create(
        model="toy",
        file=("sound.wav", file.getvalue()),
        response_format="verbose_json",
        timestamp_granularities=["word"],
        extra_body={"delay_ms": delay_ms},
    )
    assert found.words
    return [{"word": word.word, "start": word.start, "end": word.end} for word in found.words]


async def live_events(url: str, delay: str) -> list[Any]:
    """The events with text of one utterance."""
    client: Any = openai.AsyncOpenAI(base_url=url, api_key="none")
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        audio = {"format": {"type": "audio/pcm", "rate": RATE}, "transcription": {"delay": delay}}
        await connection.session.update(session={"type": "transcription", "audio": {"input": audio}})
        for block in blocks():
            await connection.input_audio_buffer.append(audio=block)
        await connection.input_audio_buffer.commit()
        events = []
        async for event in connection:
            if event.type.endswith("transcription.delta"):
                events.append(event)
            if event.type.endswith("transcription.completed"):
                assert "".join(each.delta for each in events) == event.transcript
                return events
    raise AssertionError("no transcript")


@pytest.mark.parametrize("delay", DELAYS)
def test_live_times_are_those_of_the_recording(server: RunningServer, delay: str) -> None:
    url = f"{server.url}/v1"
    events = asyncio.run(live_events(url, delay))
    words = list(chain.from_iterable(event.words for event in events))
    assert words == recorded_words(url, DELAYS[delay]) and len(words) > 4
    for times in ([word["start"] for word in words], [word["end"] for word in words]):
        assert times == sorted(times) and times[-1] <= len(SOUND) / RATE
    assert {type(event).__name__ for event in events} == {"ConversationItemInputAudioTranscriptionDeltaEvent"}


APPENDS = {"delta": "input_audio_buffer.append", "text": "input_audio.append"}  # by the field of the text
UPDATE = {"type": "session.update", "model": "toy"}


@pytest.mark.parametrize(
    "path, field, first, end",
    [
        (VLLM, "delta", [UPDATE], {"type": "input_audio_buffer.commit", "final": True}),
        (MISTRAL.replace("loud", "toy"), "text", [], {"type": "input_audio.end"}),
    ],
    ids=["vllm", "mistral"],
)
def test_the_other_dialects_send_no_delta_without_text(
    server: RunningServer, path: str, field: str, first: list[dict[str, str]], end: dict[str, Any]
) -> None:
    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        await socket.receive()
        sound = [{"type": APPENDS[field], "audio": block} for block in blocks()]
        for message in (*first, *sound, end):
            await socket.socket.send(json.dumps(message))
        return await socket.until("transcription.done")

    *deltas, done = talk(server, conversation, path)
    assert all(each[field] for each in deltas)
    assert "".join(each[field] for each in deltas) == done["text"]
