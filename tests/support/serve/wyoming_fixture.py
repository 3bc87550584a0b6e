"""A Wyoming server on the toy tasks, and what its tests ask of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
from support.serve.http_server import Tasks, wait_until
from support.serve.loud_to_text import LoudToText, square_wave
from support.serve.tone_speech import ToneSpeech
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.event import Event, Eventable

from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.serve.wyoming.server import WyomingServer
from voxport.runtime.speech_to_text import SpeechToText

TEXT = (
    "The first sentence of this text is long enough to be spoken without the next one. "
    "The second sentence follows the first one, and it is long enough to be spoken alone too. End."
)
END_OF_SPEECH, END_OF_TEXT = ("audio-stop",), ("synthesize-stopped",)
END_OF_TRANSCRIPT = ("transcript-stop",)
WAIT_S = 10


class Bilingual(ToneSpeech):
    """Bob speaks French."""

    def language(self, voice: str | None) -> str:
        return "fr" if voice == "bob" else "en"


class WyomingFixture:
    """Models with their tasks, and a Wyoming server."""

    def __init__(self, limits: Limits, is_live: bool, **more: SpeechToText) -> None:
        """`more` are further models by their names."""
        speech, transcription = Bilingual(), LoudToText(is_live)
        self.engines_may_run = speech.gate
        transcription.before_feed = lambda: self.engines_may_run.wait(WAIT_S)
        tasks: Tasks = {"tts": speech, "stt": transcription, **more}
        self.models = Models(tasks, limits, slots=2)
        self.models.start()
        wait_until(lambda: self.models.is_ready)

    @property
    def speech_worker(self) -> SpeechWorker:
        return self.models.speech_worker("tts")

    @property
    def transcription_worker(self) -> TranscriptionWorker:
        return self.models.transcription_worker("stt")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        async with WyomingServer(self.models, "127.0.0.1", 0) as server:
            self.port = server.port
            async with AsyncClient.from_uri(f"tcp://127.0.0.1:{server.port}") as client:
                yield client


@contextmanager
def wyoming_fixture(is_live: bool = True, **limits: Any) -> Iterator[WyomingFixture]:
    """`limits` may have a `french` task, too."""
    more = {"french": limits.pop("french")} if "french" in limits else {}
    made = WyomingFixture(Limits(**limits), is_live, **more)
    try:
        yield made
    finally:
        made.engines_may_run.set()
        made.models.drain(0)


async def ask(client: AsyncClient, *requests: Event | Eventable, until: tuple[str, ...]) -> list[Event]:
    """Sends events and returns what arrives until an event of one of the types, an error or the end."""
    for request in requests:
        await client.write_event(request if isinstance(request, Event) else request.event())
    return await answers(client.read_event, until)


async def answers(read: Callable[[], Awaitable[Event | None]], until: tuple[str, ...]) -> list[Event]:
    found: list[Event] = []
    while not found or found[-1].type not in (*until, "error"):
        event = await asyncio.wait_for(read(), WAIT_S)
        if event is None:
            break
        found.append(event)
    return found


def types(events: list[Event]) -> list[str]:
    """Types of the events; several of one type in a row count once."""
    found = [event.type for event in events]
    return [kind for index, kind in enumerate(found) if index == 0 or kind != found[index - 1]]


def sound(events: list[Event]) -> bytes:
    return b"".join(event.payload for event in events if event.type == "audio-chunk" and event.payload)


def spoken(text: str, voice: str | None = None) -> bytes:
    """What the task itself speaks."""
    return pcm16(np.concatenate(list(Bilingual().speak(text, voice=voice))))


def tone(pattern: str) -> bytes:
    """80 ms per letter: loud if it is an x."""
    blocks = [square_wave(1280, 16000 * (letter == "x")).astype("<i2") for letter in pattern]
    return bytes(np.concatenate(blocks).tobytes())


def chunks(content: bytes, rate: int = 16000, channels: int = 1, size: int = 2000) -> list[Eventable]:
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    sent = [AudioChunk(rate, 2, channels, piece) for piece in pieces]
    return [AudioStart(rate, 2, channels), *sent, AudioStop()]


async def until_true(condition: Callable[[], bool]) -> float:
    """Seconds until the condition holds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < WAIT_S
        await asyncio.sleep(0.005)
    return time.monotonic() - started


def conversation(
    fixture: WyomingFixture, *requests: Event | Eventable, until: tuple[str, ...], answers: int = 1
) -> list[list[Event]]:
    """Sends events on one connection. Returns what follows, up to one of `until`, as often as `answers`."""

    async def run() -> list[list[Event]]:
        async with fixture.client() as client:
            first = await ask(client, *requests, until=until)
            return [first, *[await ask(client, until=until) for _ in range(answers - 1)]]

    return asyncio.run(run())
