# dependencies: mistralai[realtime]<3
# dependencies: mistralai[realtime]
"""The Python SDK of Mistral, with the names of Mistral's documents."""

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

from mistralai.client import Mistral
from mistralai.client.models import TranscriptionStreamDone

from tools.clients.checks import ADDRESS, KEY, RECORDING, TEXT, WORD, check, pcm

audio = (client := Mistral(api_key=KEY, server_url=ADDRESS)).audio
SPEECH: Any = {"model": "voxtral-mini-tts-2603", "input": TEXT}
FILE: Any = {"file_name": RECORDING.name, "content": RECORDING.read_bytes()}
LISTEN: Any = {"model": "voxtral-mini-latest", "file": FILE}


def speech_events() -> object:
    """Samples are float32."""
    fields: Any = {"voice_id": "en_paul_neutral", "response_format": "pcm", "stream": True}
    with audio.speech.complete(**SPEECH, **fields) as events:
        pieces = [base64.b64decode(getattr(event.data, "audio_data", "")) for event in events]
    return 0.05 < max(abs(value) for (value,) in struct.iter_unpack("<f", b"".join(pieces))) <= 1


async def realtime() -> object:
    async def sound() -> AsyncIterator[bytes]:
        yield pcm(16000, 0.5)

    events = audio.realtime.transcribe_stream(sound(), "voxtral-mini-transcribe-realtime-2602")
    return [WORD in event.text async for event in events if isinstance(event, TranscriptionStreamDone)][-1]


async def realtime_speech() -> object:
    """Text in pieces. Version 2 has none."""
    if not hasattr(audio, "realtime_speech"):
        return True
    async with await audio.realtime_speech.connect(model=SPEECH["model"]) as session:
        for word in TEXT.split():
            await session.send_text(f"{word} ")
        await session.end()
        async for event in session.events():
            assert event.type != "error", event
            if event.type == "speech.audio.done":
                return True
    return None


check(
    "mistralai",
    speech=lambda: len(base64.b64decode(audio.speech.complete(**SPEECH).audio_data)) > 5000,
    speech_events=speech_events,
    transcription=lambda: WORD in audio.transcriptions.complete(**LISTEN, context_bias=["Voxport"]).text,
    transcription_events=lambda: list(audio.transcriptions.stream(**LISTEN))[-1].data.text,
    models=lambda: client.models.list().data,
    voices=lambda: audio.voices.list().items,
    realtime=realtime,
    realtime_speech=realtime_speech,
)
