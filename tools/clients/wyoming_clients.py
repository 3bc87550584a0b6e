# python: 3.12
# dependencies: wyoming_openai
"""The client library of Home Assistant, with the server itself, and through the bridge wyoming_openai."""

import asyncio
import os
import subprocess
import sys

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeVoice

from tools.clients.checks import ADDRESS, KEY, TEXT, WORD, check, pcm

OWN, BRIDGE = int(os.environ["WYOMING_PORT"]), 18433
SOUND: tuple[int, int, int] = (16000, 2, 1)


async def events(port: int, *sent: Eventable, last: str) -> list[Event]:
    """What the server answers, up to an event of the type `last`. Raises RuntimeError for an error."""
    found: list[Event] = []
    async with AsyncTcpClient("127.0.0.1", port) as client:
        for each in sent:
            await client.write_event(each.event())
        while not found or found[-1].type != last:
            event = await client.read_event()
            if event is None or Error.is_type(event.type):
                raise RuntimeError(event.data if event else "the connection ended")
            found.append(event)
    return found


async def synthesis(port: int = OWN) -> object:
    """With the first voice that the server announces."""
    info = Info.from_event((await events(port, Describe(), last="info"))[-1])
    request = Synthesize(TEXT, SynthesizeVoice(info.tts[0].voices[0].name))
    return sum(len(each.payload or b"") for each in await events(port, request, last="audio-stop")) > 20000


async def transcription(port: int = OWN) -> object:
    sent = Transcribe(language="en"), AudioStart(*SOUND), AudioChunk(*SOUND, pcm(SOUND[0])), AudioStop()
    return WORD in Transcript.from_event((await events(port, *sent, last="transcript"))[-1]).text


async def bridge() -> object:
    """wyoming_openai with address, key and OpenAI's models: a synthesis and a transcription."""
    command = [sys.executable, "-m", "wyoming_openai", "--uri", f"tcp://127.0.0.1:{BRIDGE}"]
    for task, model in (("stt", "whisper-1"), ("tts", "tts-1")):
        command += [f"--{task}-openai-url", f"{ADDRESS}/v1", f"--{task}-openai-key", KEY]
        command += [f"--{task}-models", model]
    with subprocess.Popen(command) as process:
        try:
            await asyncio.sleep(5)
            return await synthesis(BRIDGE) and await transcription(BRIDGE)
        finally:
            process.terminate()


check("wyoming wyoming_openai", synthesis=synthesis, transcription=transcription, bridge=bridge)
