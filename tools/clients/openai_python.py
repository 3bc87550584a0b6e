# dependencies: openai[realtime]
"""The Python SDK of OpenAI, with the names and voices of OpenAI's documents."""

import base64
import json
from typing import Any

import openai

from tools.clients.checks import RECORDING, TEXT, WORD, check, pcm

client, live = openai.OpenAI(max_retries=0), openai.AsyncOpenAI(max_retries=0)


def speech() -> object:
    found = client.audio.speech.create(model="gpt-4o-mini-tts", voice="coral", input=TEXT, instructions="Calm.")
    return len(found.content) > 5000 and found.content[:1] in (b"I", b"\xff")  # ID3 or a frame


def speech_events() -> object:
    create = client.audio.speech.with_streaming_response.create
    with create(model="gpt-4o-mini-tts", voice="alloy", input=TEXT, stream_format="sse") as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    return b"".join(base64.b64decode(each.get("audio", "")) for each in events)


def transcription() -> object:
    return WORD in client.audio.transcriptions.create(model="whisper-1", file=RECORDING, prompt="Hi").text


def transcription_events() -> object:
    options: Any = {"include": ["logprobs"], "chunking_strategy": "auto"}
    create = client.audio.transcriptions.create
    events = list(create(model="gpt-4o-transcribe", file=RECORDING, stream=True, **options))
    return events[-1].type == "transcript.text.done" and WORD in events[-1].text


def verbose_transcription() -> object:
    found = client.audio.transcriptions.create(
        model="whisper-1", file=RECORDING, response_format="verbose_json", timestamp_granularities=["word"]
    )
    return found.words


def models() -> object:
    return len(client.models.list().data) > 1


async def transcribe_live(turn_detection: Any, seconds: float) -> object:
    """The transcript of a session. Without turn detection, the client ends the utterance."""
    audio = {"transcription": {"model": "gpt-4o-transcribe"}, "turn_detection": turn_detection}
    async with live.realtime.connect(extra_query={"intent": "transcription"}) as session:
        await session.session.update(session={"type": "transcription", "audio": {"input": audio}})
        sound = pcm(24000, seconds)
        for start in range(0, len(sound), 9600):
            piece = base64.b64encode(sound[start : start + 9600]).decode()
            await session.input_audio_buffer.append(audio=piece)
        if not turn_detection:
            await session.input_audio_buffer.commit()
        async for event in session:
            assert event.type != "error", event
            if event.type == "conversation.item.input_audio_transcription.completed":
                return WORD in event.transcript
    return None


async def realtime() -> object:
    return await transcribe_live(None, 0)


async def realtime_turns() -> object:
    return await transcribe_live({"type": "server_vad", "silence_duration_ms": 500}, 2)


check(
    "openai",
    *(speech, speech_events, transcription, transcription_events, verbose_transcription, models),
    *(realtime, realtime_turns),
)
