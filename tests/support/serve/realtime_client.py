"""Sockets of live transcription, and messages for them."""

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import websockets
from support.serve.http_server import DEFAULT, RunningServer, running
from support.serve.loud_to_text import BLOCK, RATE, LoudToText, square_wave

from voxport.runtime.serve.limits import Limits

Answer = TypeVar("Answer")
BLOCKS = [0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0]  # three words


def pcm(rate: int = RATE, blocks: Sequence[float] = BLOCKS) -> list[bytes]:
    """16-bit samples of 80 ms each."""
    return [square_wave(BLOCK * rate // RATE, 32767 * value).astype("<i2").tobytes() for value in blocks]


def text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


class Socket:
    """JSON messages over a socket."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, **fields: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def post(self, message: dict[str, Any] | str | bytes) -> None:
        """Sends a message that may be wrong."""
        await self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await asyncio.wait_for(self.socket.recv(), 5))
        return message

    async def until(self, kind: str) -> list[dict[str, Any]]:
        messages = [await self.receive()]
        while messages[-1]["type"] != kind:
            messages.append(await self.receive())
        return messages

    async def say(self) -> None:
        """An utterance of three words in OpenAI's dialect."""
        for block in pcm(24000):
            await self.send("input_audio_buffer.append", audio=text_of(block))
        await self.send("input_audio_buffer.commit")

    async def rest(self) -> tuple[list[dict[str, Any]], int]:
        """The messages until the server closes the socket, and its code."""
        messages = []
        try:
            while True:
                messages.append(await self.receive())
        except websockets.exceptions.ConnectionClosed as closed:
            assert closed.rcvd
            return messages, closed.rcvd.code


@contextmanager
def held_server(limits: Limits = DEFAULT) -> Iterator[tuple[RunningServer, threading.Event]]:
    """A server that transcribes nothing before the event is set."""
    task, gate = LoudToText(), threading.Event()
    with running({"loud": task}, limits) as server:
        task.before_feed = lambda: gate.wait(10)
        yield server, gate
        gate.set()  # the server waits for its engine when it stops


class HasPort(Protocol):
    port: int


def talk(
    server: HasPort,
    conversation: Callable[[Socket], Awaitable[Answer]],
    path: str = "/v1/realtime",
    **options: Any,
) -> Answer:
    """Runs a coroutine function with a connected socket."""

    async def run() -> Answer:
        url = f"ws://127.0.0.1:{server.port}{path}"
        async with websockets.connect(url, **options) as socket:
            return await conversation(Socket(socket))

    return asyncio.run(run())


OPENAI, VLLM = "/v1/realtime?intent=transcription&model=loud", "/v1/realtime"
MISTRAL = "/v1/audio/transcriptions/realtime?model=loud"
COMPLETED = "conversation.item.input_audio_transcription.completed"
TEXT = "one two three"  # of `Socket.say`
SOUND = text_of(b"\0\0" * 1280)


def update(**fields: object) -> dict[str, Any]:
    """A message of OpenAI's dialect with fields of the audio's input."""
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": fields}}}


async def append(socket: Socket, blocks: Sequence[bytes], kind: str = "input_audio_buffer.append") -> None:
    """Sends audio in pieces."""
    for block in blocks:
        await socket.send(kind, audio=text_of(block))


def kinds(events: Sequence[Any]) -> list[str]:
    """Last parts of the types of events that are no text."""
    found = [event["type"] if isinstance(event, dict) else event.type for event in events]
    return [kind.rpartition(".")[2] for kind in found if not kind.endswith(".delta")]
