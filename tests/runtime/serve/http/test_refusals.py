"""Requests that are refused for lack of room need no thread: all threads of the server may be busy."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from support.serve.http_server import wait_until
from support.serve.loud_to_text import LoudToText
from support.serve.recordings import three_words
from support.serve.tone_speech import ToneSpeech

from voxport.runtime.serve.http.app import build_app
from voxport.runtime.serve.http.keys import ANONYMOUS, Keys
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models

LIMITS = Limits(waiting=1)


class Occupied(ThreadPoolExecutor):
    """All threads are busy, for longer than the test."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        return Future()


@pytest.fixture
def models() -> Iterator[Models]:
    """One text is spoken and one waits; one recording waits. Nothing of them ends before the test."""
    gate, speech, listener = threading.Event(), ToneSpeech(), LoudToText(is_live=False)
    speech.gate = gate
    found = Models({"tone": speech, "loud": listener}, LIMITS, Metrics(), slots=1)
    found.start()
    wait_until(lambda: found.is_ready)
    listener.before_feed = lambda: gate.wait(30) and None
    yield found
    gate.set()
    found.drain(0)


async def refused(models: Models, path: str, **body: Any) -> httpx2.Response:
    """The answer to a request while all threads are busy. Raises TimeoutError if it needs one."""
    asyncio.get_running_loop().set_default_executor(Occupied(1))
    app = build_app(models, Metrics(), LIMITS, Keys())
    transport = httpx2.ASGITransport(app=app)
    async with (
        asyncio.timeout(5),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        return await client.post(path, **body)


def check(answer: httpx2.Response) -> None:
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "server_is_overloaded"
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("voice", [{}, {"voice": "anna"}], ids=["no voice", "a voice"])
def test_a_text_is_refused_while_all_threads_are_busy(models: Models, voice: dict[str, str]) -> None:
    worker = models.speech_workers["tone"]

    async def ask() -> httpx2.Response:
        for waiting in (0, 1):
            worker.submit(worker.prepare("Hello there.", {}), ANONYMOUS)
            await asyncio.to_thread(wait_until, lambda: len(worker._waiting) == waiting and worker._running)
        return await refused(models, "/v1/audio/speech", json={"model": "tone", "input": "Hello.", **voice})

    check(asyncio.run(ask()))


def test_a_recording_is_refused_while_all_threads_are_busy(models: Models) -> None:
    worker = models.transcription_workers["loud"]

    async def ask() -> httpx2.Response:
        for _ in range(20):  # some are transcribed in turn, the others wait
            if worker._waiting:
                break
            worker.submit(ANONYMOUS, None, 1.0).finish()
            await asyncio.sleep(0.05)
        files = {"file": ("talk.flac", three_words())}
        return await refused(models, "/v1/audio/transcriptions", data={"model": "loud"}, files=files)

    check(asyncio.run(ask()))
