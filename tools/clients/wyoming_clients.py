# python: 3.12
# dependencies: wyoming_openai
"""The client library of Home Assistant, with the server itself, and through the bridge wyoming_openai."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from tools.clients.checks import ADDRESS, KEY, TEXT, WORD, check, pcm

OWN, BRIDGE = int(os.environ["WYOMING_PORT"]), 18433
RATE = 16000


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


async def info(port: int) -> Info:
    return Info.from_event((await events(port, Describe(), last="info"))[-1])


async def speaks(port: int, *sent: Eventable, last: str = "audio-stop") -> bool:
    return sum(len(each.payload or b"") for each in await events(port, *sent, last=last)) > 20000


async def transcribes(port: int) -> bool:
    sound = pcm(RATE)
    chunks = [AudioChunk(RATE, 2, 1, sound[start : start + 2048]) for start in range(0, len(sound), 2048)]
    sent = Transcribe(language="en"), AudioStart(RATE, 2, 1), *chunks, AudioStop()
    return WORD in Transcript.from_event((await events(port, *sent, last="transcript"))[-1]).text


async def synthesis() -> object:
    return await speaks(OWN, Synthesize(TEXT, SynthesizeVoice(language="en")))


async def streamed_text() -> object:
    pieces = [SynthesizeChunk(f"{word} ") for word in TEXT.split()]
    return await speaks(OWN, SynthesizeStart(), *pieces, SynthesizeStop(), last="synthesize-stopped")


async def transcription() -> object:
    return await transcribes(OWN)


@asynccontextmanager
async def bridge() -> AsyncIterator[int]:
    """wyoming_openai with URL, key and OpenAI's models."""
    url, command = f"{ADDRESS}/v1", [sys.executable, "-m", "wyoming_openai", "--log-level", "ERROR"]
    for task, model in (("stt", "whisper-1"), ("tts", "tts-1")):
        command += [f"--{task}-openai-url", url, f"--{task}-openai-key", KEY, f"--{task}-models", model]
    with subprocess.Popen([*command, "--uri", f"tcp://127.0.0.1:{BRIDGE}"]) as process:
        try:
            end = time.monotonic() + 30
            while True:
                await asyncio.sleep(0.2)
                try:
                    socket.create_connection(("127.0.0.1", BRIDGE), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < end and process.poll() is None, "the bridge does not start"
            yield BRIDGE
        finally:
            process.terminate()


async def bridged_synthesis() -> object:
    """With the first voice that the bridge announces."""
    async with bridge() as port:
        voice = (await info(port)).tts[0].voices[0]
        return await speaks(port, Synthesize(TEXT, SynthesizeVoice(voice.name)))


async def bridged_transcription() -> object:
    async with bridge() as port:
        return await transcribes(port)


check("wyoming wyoming_openai", synthesis, streamed_text, transcription, bridged_synthesis, bridged_transcription)
