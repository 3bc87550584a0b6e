# dependencies: livekit-agents[openai,mistralai,silero]
"""Services of LiveKit Agents: its plugins openai and mistralai, in the session of a worker."""

import asyncio
from typing import Any

from livekit import rtc
from livekit.agents import stt, utils
from livekit.plugins import mistralai, openai, silero
from mistralai.client import Mistral

from tools.clients.checks import ADDRESS, KEY, TEXT, WORD, check, pcm

RATE = 24000
MISTRAL = Mistral(api_key=KEY, server_url=ADDRESS)


def frame(sound: bytes) -> rtc.AudioFrame:
    return rtc.AudioFrame(sound, RATE, 1, len(sound) // 2)


async def spoken(service: Any) -> object:
    async with utils.http_context.open(), service.synthesize(TEXT) as stream:
        return sum([event.frame.duration async for event in stream]) > 1


async def recognised(service: Any) -> object:
    return WORD in (await service.recognize(frame(pcm(RATE)))).alternatives[0].text


async def transcribed(service: Any) -> object:
    """Speech and a pause in real time, because plugins detect turns."""
    async with utils.http_context.open(), service.stream() as stream, asyncio.TaskGroup() as group:

        async def send(sound: bytes, step: int) -> None:
            for start in range(0, len(sound) - step, step):
                stream.push_frame(frame(sound[start : start + step]))
                await asyncio.sleep(0.05)

        sending = group.create_task(send(pcm(RATE, 2), RATE // 10))
        async for event in stream:
            if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT:
                sending.cancel()
                return WORD in event.alternatives[0].text
    return False


LIVE, MISTRAL_LIVE = "gpt-live-transcribe", "voxtral-mini-transcribe-realtime-2602"
check(
    "livekit-agents",
    openai_tts=lambda: spoken(openai.TTS()),
    openai_stt=lambda: recognised(openai.STT()),
    openai_realtime=lambda: transcribed(openai.STT(use_realtime=True)),
    openai_live=lambda: transcribed(openai.STT(model=LIVE, vad=silero.VAD.load())),
    mistral_tts=lambda: spoken(mistralai.TTS(client=MISTRAL)),
    mistral_stt=lambda: recognised(mistralai.STT(client=MISTRAL)),
    mistral_realtime=lambda: transcribed(mistralai.STT(client=MISTRAL, model=MISTRAL_LIVE)),
)
