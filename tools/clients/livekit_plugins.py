# dependencies: livekit-agents[openai,mistralai,silero]
"""Services of LiveKit Agents: its plugins openai and mistralai."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from livekit import rtc
from livekit.agents import stt, utils
from livekit.plugins import mistralai, openai, silero
from mistralai.client import Mistral

from tools.clients.checks import ADDRESS, KEY, TEXT, WORD, check, pcm

RATE = 24000


@asynccontextmanager
async def opened(service: Any) -> AsyncIterator[Any]:
    """A service in the session of a worker."""
    async with utils.http_context.open():
        try:
            yield service
        finally:
            await service.aclose()


async def spoken(service: Any) -> bool:
    async with opened(service), service.synthesize(TEXT) as stream:
        return sum([event.frame.duration async for event in stream]) > 1


async def recognised(service: Any) -> bool:
    sound = pcm(RATE)
    async with opened(service):
        found = await service.recognize(rtc.AudioFrame(sound, RATE, 1, len(sound) // 2))
    return WORD in found.alternatives[0].text


async def transcribed(service: Any) -> bool:
    """Speech and a pause in real time."""
    async with opened(service), service.stream() as stream:
        sound, step = pcm(RATE, 2), RATE // 10  # bytes of 50 ms

        async def send() -> None:
            for start in range(0, len(sound) - step, step):
                stream.push_frame(rtc.AudioFrame(sound[start : start + step], RATE, 1, step // 2))
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(send())
        async for event in stream:
            if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT:
                sending.cancel()
                return WORD in event.alternatives[0].text
    return False


def mistral() -> Mistral:
    return Mistral(api_key=KEY, server_url=ADDRESS)


async def openai_tts() -> object:
    return await spoken(openai.TTS())


async def openai_stt() -> object:
    return await recognised(openai.STT())


async def openai_realtime() -> object:
    return await transcribed(openai.STT(use_realtime=True))


async def openai_live() -> object:
    """A model without turns of the server: the plugin detects them."""
    return await transcribed(openai.STT(model="gpt-live-transcribe", vad=silero.VAD.load()))


async def mistral_tts() -> object:
    return await spoken(mistralai.TTS(client=mistral()))


async def mistral_stt() -> object:
    return await recognised(mistralai.STT(client=mistral()))


async def mistral_realtime() -> object:
    model = "voxtral-mini-transcribe-realtime-2602"
    return await transcribed(mistralai.STT(client=mistral(), model=model))


OPENAI, MISTRAL = (openai_tts, openai_stt, openai_realtime, openai_live), (mistral_tts, mistral_stt, mistral_realtime)
check("livekit-agents", *OPENAI, *MISTRAL)
