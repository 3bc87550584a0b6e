"""Clients of `ToneSpeech` and `LoudToText` that leave, and what a server in this process has then."""

import asyncio
import gc
import json
import os
import threading
import time

import websockets
from support.serve.http_server import RunningServer, wait_until
from support.serve.realtime_client import OPENAI, SOUND

from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker

FORMS = {
    "stream": {},
    "events": {"stream_format": "sse"},
    "whole": {"response_format": "flac"},
}


def resources() -> dict[str, int]:
    gc.collect()
    tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]
    return {
        "tasks": len(tasks),
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def settled(worker: SpeechWorker | TranscriptionWorker) -> dict[str, int]:
    """The resources when nothing is spoken and their numbers no longer change."""
    wait_until(lambda: worker.is_idle, 30)
    found, last = resources(), dict[str, int]()
    while found != last:
        time.sleep(0.2)
        found, last = resources(), found
    return found


def leave(server: RunningServer, count: int) -> None:
    """Requests of all forms, 20 at a time. Some clients leave before, and some after the first bytes."""

    async def one(index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = {
            "model": "tone",
            "input": "a" * 200,
            "response_format": "pcm",
            **list(FORMS.values())[index % 3],
        }
        content = json.dumps(body).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        if index % 3 < 2 and index % 2:
            await reader.read(10)
        writer.close()

    async def run() -> None:
        for start in range(0, count, 20):
            await asyncio.gather(*(one(index) for index in range(start, min(count, start + 20))))

    asyncio.run(run())


def leave_sockets(server: RunningServer, count: int) -> None:
    """Sockets that are cut: at once, while audio is transcribed, or while the end of an utterance is."""

    async def one(index: int) -> None:
        url = f"ws://127.0.0.1:{server.port}{OPENAI}"
        async with websockets.connect(url, ping_interval=None, close_timeout=0) as socket:
            for _ in range(index % 3):
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": SOUND}))
            if index % 3 == 2:
                await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
            if index % 2:
                await socket.recv()
            socket.transport.abort()

    async def run() -> None:
        for start in range(0, count, 10):
            await asyncio.gather(*(one(index) for index in range(start, min(count, start + 10))))

    asyncio.run(run())
