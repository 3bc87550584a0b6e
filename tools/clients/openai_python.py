# dependencies: openai[realtime]
"""The Python SDK of OpenAI, with the names and voices of OpenAI's documents."""

import base64
from typing import Any

import openai

from tools.clients.checks import RECORDING, TEXT, WORD, check, pcm

client, live = openai.OpenAI(max_retries=0), openai.AsyncOpenAI(max_retries=0)
transcribed, spoken = client.audio.transcriptions.create, client.audio.speech


def speech_events() -> object:
    fields: Any = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": TEXT, "stream_format": "sse"}
    with spoken.with_streaming_response.create(**fields) as response:
        return any("speech.audio.done" in line for line in response.iter_lines())


async def realtime(turn_detection: Any = None, seconds: float = 0) -> object:
    audio: Any = {"transcription": {"model": "gpt-4o-transcribe"}, "turn_detection": turn_detection}
    async with live.realtime.connect(extra_query={"intent": "transcription"}) as session:
        await session.session.update(session={"type": "transcription", "audio": {"input": audio}})
        await session.input_audio_buffer.append(audio=base64.b64encode(pcm(24000, seconds)).decode())
        if not turn_detection:
            await session.input_audio_buffer.commit()
        async for event in session:
            assert event.type != "error", event
            if event.type == "conversation.item.input_audio_transcription.completed":
                return WORD in event.transcript
    return None


MODEL: Any = {"model": "gpt-4o-transcribe", "file": RECORDING}
HINTS: Any = {"include": ["logprobs"], "chunking_strategy": "auto", "prompt": "Bottles."}
WORDS: Any = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
SPEECH: Any = {"model": "gpt-4o-mini-tts", "voice": "coral", "input": TEXT, "instructions": "Calm."}
check(
    "openai",
    speech=lambda: len(spoken.create(**SPEECH).content) > 5000,
    speech_events=speech_events,
    transcription=lambda: WORD in transcribed(model="whisper-1", file=RECORDING).text,
    transcription_events=lambda: WORD in list(transcribed(**MODEL, **HINTS, stream=True))[-1].text,
    words=lambda: transcribed(model="whisper-1", file=RECORDING, **WORDS).words,
    models=lambda: client.models.list().data,
    realtime=realtime,
    realtime_turns=lambda: realtime({"type": "server_vad", "silence_duration_ms": 500}, 2),
)
