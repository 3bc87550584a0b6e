# dependencies: pipecat-ai[openai,mistral]
"""Services of Pipecat, each in a pipeline of its own."""

from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    ErrorFrame,
    InputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.services.mistral.stt import MistralSTTService
from pipecat.services.mistral.tts import MistralTTSService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService, OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import SleepFrame, run_test

from tools.clients.checks import ADDRESS, KEY, TEXT, WORD, check, pcm

RATE = 24000
LIVE = ADDRESS.replace("http", "ws") + "/v1/realtime"
logger.remove()


async def frames(service: Any, *sent: Any) -> list[Any]:
    """Raises RuntimeError for an error that the service reports."""
    down, up = await run_test(service, frames_to_send=sent)
    for frame in (*down, *up):
        if isinstance(frame, ErrorFrame):
            raise RuntimeError(frame.error)
    return list(down)


async def spoken(service: Any) -> bool:
    found = await frames(service, TTSSpeakFrame(TEXT), SleepFrame(5))
    return sum(len(each.audio) for each in found if isinstance(each, TTSAudioRawFrame)) > RATE


async def transcribed(service: Any, silence_s: float = 0) -> bool:
    """The frames of the user's turn are from a detector in the pipeline."""
    sound, step = pcm(RATE, silence_s), RATE // 5
    pieces = [InputAudioRawFrame(sound[at : at + step], RATE, 1) for at in range(0, len(sound), step)]
    paced = [each for piece in pieces for each in (piece, SleepFrame(0.02))]
    turn = VADUserStartedSpeakingFrame(), *paced, VADUserStoppedSpeakingFrame(), SleepFrame(4)
    found = await frames(service, SleepFrame(1), *turn)
    return any(WORD in each.text for each in found if isinstance(each, TranscriptionFrame))


async def openai_tts() -> object:
    return await spoken(OpenAITTSService(api_key=KEY))


async def openai_stt() -> object:
    return await transcribed(OpenAISTTService(api_key=KEY, sample_rate=RATE, include_prob_metrics=True))


async def openai_realtime() -> object:
    return await transcribed(OpenAIRealtimeSTTService(api_key=KEY, base_url=LIVE, sample_rate=RATE))


async def openai_realtime_turns() -> object:
    turns = {"type": "server_vad"}
    service = OpenAIRealtimeSTTService(api_key=KEY, base_url=LIVE, sample_rate=RATE, turn_detection=turns)
    return await transcribed(service, silence_s=2)


async def mistral_tts() -> object:
    service = MistralTTSService(api_key=KEY)
    service._client = type(service._client)(api_key=KEY, server_url=ADDRESS)  # it takes no address
    return await spoken(service)


async def mistral_stt() -> object:
    return await transcribed(MistralSTTService(api_key=KEY, base_url=ADDRESS, sample_rate=RATE))


OPENAI = (openai_tts, openai_stt, openai_realtime, openai_realtime_turns)
check("pipecat-ai", *OPENAI, mistral_tts, mistral_stt)
