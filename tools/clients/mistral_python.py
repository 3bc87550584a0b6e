# dependencies: mistralai[realtime]<3
# dependencies: mistralai[realtime]
"""The Python SDK of Mistral, with the names of Mistral's documents."""

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

from mistralai.client import Mistral

from tools.clients.checks import ADDRESS, KEY, RECORDING, TEXT, WORD, check, pcm

client = Mistral(api_key=KEY, server_url=ADDRESS)
SPEECH: Any = {"model": "voxtral-mini-tts-2603", "input": TEXT}
LISTENER, LIVE = "voxtral-mini-latest", "voxtral-mini-transcribe-realtime-2602"


def file() -> Any:
    return {"file_name": RECORDING.name, "content": RECORDING.read_bytes()}


def speech() -> object:
    return len(base64.b64decode(client.audio.speech.complete(**SPEECH).audio_data)) > 5000


def speech_events() -> object:
    """Float32 samples, as the documents of `pcm` say."""
    options: Any = {"voice_id": "en_paul_neutral", "response_format": "pcm", "stream": True}
    found = b""
    with client.audio.speech.complete(**SPEECH, **options) as events:
        for event in events:
            found += base64.b64decode(getattr(event.data, "audio_data", ""))
    samples = struct.unpack(f"<{len(found) // 4}f", found)
    return 0.05 < max(map(abs, samples)) <= 1


def transcription() -> object:
    found = client.audio.transcriptions.complete(model=LISTENER, file=file(), context_bias=["Voxport"])
    return WORD in found.text and found.model


def transcription_events() -> object:
    with client.audio.transcriptions.stream(model=LISTENER, file=file()) as events:
        names = [event.event for event in events]
    return len(names) > 1 and names[-1] == "transcription.done"


def models() -> object:
    return client.models.list().data


def voices() -> object:
    return client.audio.voices.list().items


async def realtime() -> object:
    """`transcribe_stream` flushes and ends the audio after its last piece."""

    async def pieces() -> AsyncIterator[bytes]:
        sound = pcm(16000, 0.5)
        for start in range(0, len(sound), 6400):
            yield sound[start : start + 6400]

    async for event in client.audio.realtime.transcribe_stream(pieces(), LIVE):
        if event.type == "transcription.done":
            return WORD in event.text
    return None


async def realtime_speech() -> object:
    if not hasattr(client.audio, "realtime_speech"):
        return "absent from this version"
    found = b""
    async with await client.audio.realtime_speech.connect(model=SPEECH["model"]) as session:
        for word in TEXT.split():
            await session.send_text(f"{word} ")
        await session.end()
        async for event in session.events():
            assert event.type != "error", event
            found += base64.b64decode(getattr(event, "audio_data", ""))
            if event.type == "speech.audio.done":
                return len(found) > 5000
    return None


USES = (speech, speech_events, transcription, transcription_events, models, voices, realtime, realtime_speech)
check("mistralai", *USES)
