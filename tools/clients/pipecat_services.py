# dependencies: pipecat-ai[openai,mistral]
"""Services of Pipecat, each in a pipeline of its own. Frames of the user's turn stand for a detector."""

from typing import Any

from loguru import logger
from mistralai.client import Mistral
from pipecat.frames import frames
from pipecat.services.mistral.stt import MistralSTTService
from pipecat.services.mistral.tts import MistralTTSService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService, OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import SleepFrame, run_test

from tools.clients.checks import ADDRESS, KEY, TEXT, WORD, check, pcm

RATE = 24000
SOCKET = f"{ADDRESS.replace('http', 'ws')}/v1/realtime"
logger.remove()


async def given(service: Any, *sent: Any) -> list[Any]:
    """Frames. Raises RuntimeError for an error that the service reports."""
    down, up = await run_test(service, frames_to_send=sent)
    errors = [each.error for each in (*down, *up) if isinstance(each, frames.ErrorFrame)]
    if errors:
        raise RuntimeError(errors[0])
    return list(down)


async def spoken(service: Any) -> bool:
    found = await given(service, frames.TTSSpeakFrame(TEXT), SleepFrame(5))
    return sum(len(each.audio) for each in found if isinstance(each, frames.TTSAudioRawFrame)) > RATE


async def transcribed(service: Any) -> bool:
    sound, step = pcm(RATE, 1), RATE // 5
    pieces = [frames.InputAudioRawFrame(sound[at : at + step], RATE, 1) for at in range(0, len(sound), step)]
    paced = [each for piece in pieces for each in (piece, SleepFrame(0.02))]
    turn = frames.VADUserStartedSpeakingFrame(), *paced, frames.VADUserStoppedSpeakingFrame()
    found = await given(service, SleepFrame(1), *turn, SleepFrame(4))
    return any(WORD in each.text for each in found if isinstance(each, frames.TranscriptionFrame))


# the service has no parameter for an address
(mistral_tts := MistralTTSService(api_key=KEY))._client = Mistral(api_key=KEY, server_url=ADDRESS)
REST: Any = {"api_key": KEY, "sample_rate": RATE}
LIVE: Any = REST | {"base_url": SOCKET}
TURNS: Any = {"type": "server_vad"}
check(
    "pipecat-ai",
    openai_tts=lambda: spoken(OpenAITTSService(api_key=KEY)),
    openai_stt=lambda: transcribed(OpenAISTTService(**REST, include_prob_metrics=True)),
    openai_realtime=lambda: transcribed(OpenAIRealtimeSTTService(**LIVE)),
    openai_realtime_turns=lambda: transcribed(OpenAIRealtimeSTTService(**LIVE, turn_detection=TURNS)),
    mistral_tts=lambda: spoken(mistral_tts),
    mistral_stt=lambda: transcribed(MistralSTTService(**REST, base_url=ADDRESS)),
)
