"""Clients that leave: their slots are free within one pass in every state, and nothing of them is left."""

import asyncio
import gc
import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import cast

import pytest
import websockets
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import RATE as TRANSCRIPTION_RATE
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import OPENAI, SOUND, Socket
from support.serve.speech_requests import asking, speech_request
from support.serve.tone_speech import ToneSlots, ToneSpeech
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from voxport.runtime.batching import Fill, RowLimit
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.speech.worker import WARM_UP_TEXT, SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_request import SpeechRequest

PIECES = 3  # parts of a prompt
FORMS: dict[str, dict[str, str]] = {
    "stream": {},
    "events": {"stream_format": "sse"},
    "whole": {"response_format": "flac"},
}


class SteppedSpeech(ToneSpeech):
    """Each pass, and each piece of a prompt, waits until `allow` lets it run. `passes` counts those."""

    def __init__(self) -> None:
        super().__init__()
        self._allowed, self.passes, self.waits = threading.Semaphore(0), 0, False

    def allow(self, count: int = 1) -> None:
        self._allowed.release(count)

    def wait(self) -> None:
        self.waits = True
        assert self._allowed.acquire(timeout=20)
        self.passes, self.waits = self.passes + 1, False

    def slot_decoder(self, slots: int) -> "SteppedSlots":
        return SteppedSlots(self, slots)


class SteppedSlots(ToneSlots):
    task: SteppedSpeech

    def prepare(self, request: SpeechRequest) -> Fill:
        fill = super().prepare(request)
        if request.text == WARM_UP_TEXT:
            return fill

        def pieces(slot: int, limit: RowLimit) -> Iterator[None]:
            yield from fill(slot, limit)
            for _ in range(PIECES - 1):
                self.task.wait()
                yield
            self.task.wait()

        return pieces

    def decode(self, count: int, first: int = 0) -> None:
        if not self.is_warming_up:
            self.task.wait()


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


async def ask_and_leave(server: RunningServer, index: int) -> None:
    """A request of any form. Some clients leave before, and some after the first bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(speech_request("a" * 200, **list(FORMS.values())[index % 3]))
    if index % 3 < 2 and index % 2:
        await reader.read(10)
    writer.close()


async def cut_socket(server: RunningServer, index: int) -> None:
    """At once, while audio is transcribed, or while the end of an utterance is."""
    url = f"ws://127.0.0.1:{server.port}{OPENAI}"
    async with websockets.connect(url, ping_interval=None, close_timeout=0) as socket:
        client = Socket(socket)
        for _ in range(index % 3):
            await client.send("input_audio_buffer.append", audio=SOUND)
        if index % 3 == 2:
            await client.send("input_audio_buffer.commit")
        if index % 2:
            await socket.recv()
        socket.transport.abort()


def repeat(server: RunningServer, visit: Callable[[RunningServer, int], Awaitable[None]], count: int) -> None:
    """Ten at a time."""

    async def run() -> None:
        for start in range(0, count, 10):
            await asyncio.gather(*(visit(server, index) for index in range(start, start + 10)))

    asyncio.run(run())


def left(server: RunningServer) -> float:
    return server.metric("cancelled_total", reason="client")


def requests(server: RunningServer, status: int) -> float:
    return server.metric("requests_total", route="/v1/audio/speech", code=str(status))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("state", ["reading", "speaking"])
def test_a_slot_is_free_within_one_pass(state: str, form: str) -> None:
    """The pass in which the client leaves ends; the next one does not have the request."""
    task = SteppedSpeech()
    with running({"tone": task}, slots=2) as server:
        worker = server.models.speech_workers["tone"]
        with asking(server, **FORMS[form]) as connection:
            if state == "speaking":
                task.allow(PIECES + 2)
                wait_until(lambda: task.passes == PIECES + 2)
            else:
                task.allow()
                wait_until(lambda: task.passes == 1)
            wait_until(lambda: task.waits)  # the engine is in the next pass
            (job,) = worker._running.values()
            before = task.passes
            if state == "speaking" and form != "whole":
                assert connection.recv(10)
        wait_until(lambda: job.is_cancelled)
        task.allow()
        wait_until(lambda: worker.is_idle)
        assert task.passes <= before + 1 and not task.running and left(server) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_place_in_the_queue_is_free_within_one_pass(form: str) -> None:
    task = SteppedSpeech()
    with running({"tone": task}, slots=1) as server:
        worker = server.models.speech_workers["tone"]
        with asking(server):
            wait_until(lambda: task.waits)
            with asking(server, **FORMS[form]):
                wait_until(lambda: len(worker._waiting) == 1)
                (job,) = worker._waiting
            wait_until(lambda: job.is_cancelled)
            task.allow()
            wait_until(lambda: not worker._waiting)
            assert task.passes == 1 and left(server) == 1
            wait_until(lambda: requests(server, 499))
            assert requests(server, 499) == 1 and not requests(server, 500)
        task.allow(1000)  # the other request is cancelled at any pass


def test_a_live_stream_is_free_after_the_step_in_progress() -> None:
    """`live_slots` is 1, so another socket is taken only when the place of the first is free."""

    task, gate = LoudToText(), threading.Event()
    with running({"loud": task}) as server:
        worker = server.models.transcription_workers["loud"]
        worker.live_slots = 1
        task.before_feed = lambda: gate.wait(20)
        url = f"ws://127.0.0.1:{server.port}/v1/realtime?intent=transcription"
        sound = {"type": "input_audio_buffer.append", "audio": "A" * (4 * TRANSCRIPTION_RATE // 5)}
        with connect(url) as client:
            client.send(json.dumps(sound))
            wait_until(lambda: worker._live)
            (job,) = worker._live
        wait_until(lambda: job.is_cancelled)
        gate.set()
        wait_until(lambda: worker.is_idle and not worker._streams._slots)
        with connect(url) as client:
            client.send(json.dumps(sound))
            wait_until(lambda: worker._streams._slots)
            assert len(worker._streams._batches) == 1  # it has the place of the first


def test_clients_that_leave_leave_nothing() -> None:
    """A pass takes 5 ms, so no text is spoken to its end. The first 40 start the threads of the server."""
    limits = Limits(jobs_per_key=100, waiting=100)
    with running({"tone": ToneSpeech(pass_s=0.005)}, limits, slots=2) as server:
        worker = server.models.speech_workers["tone"]
        repeat(server, ask_and_leave, 40)
        before = settled(worker)
        repeat(server, ask_and_leave, 60)
        after = settled(worker)
        assert {name for name, count in after.items() if count > before[name]} == set()
        assert (
            worker._pool.used == 0
            and not cast(ToneSpeech, worker.task).running
            and not worker._decoder.unfinished()
        )
        assert left(server) == 100


@pytest.mark.slow  # takes several seconds
def test_sockets_that_are_cut_leave_nothing() -> None:
    with running({"loud": LoudToText()}, Limits(jobs_per_key=100)) as server:
        worker = server.models.transcription_workers["loud"]
        worker.live_slots = 100
        repeat(server, cut_socket, 20)
        before = settled(worker)
        repeat(server, cut_socket, 100)
        wait_until(lambda: not server.connections)
        after = settled(worker)
        assert {name for name, count in after.items() if count > before[name]} == set()
        assert server.metric("sockets") == 0


def test_a_connection_is_closed_whose_client_does_not_receive_the_end() -> None:
    """The answer is made and in the buffer of the connection, which would be closed when it is empty."""
    with running({"tone": ToneSpeech()}, send_s=0.3) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        wait_until(lambda: server.connections)
        (connection,) = server.connections
        connection.transport.set_write_buffer_limits(high=2**30)
        client.sendall(speech_request("a" * 4000, "connection: close", response_format="wav"))
        wait_until(lambda: server.metric("requests_total", route="/v1/audio/speech", code="200"))
        wait_until(lambda: not server.connections)


def test_a_socket_whose_client_does_not_receive_is_closed() -> None:
    """The client reads 16 answers ahead. Each repeats what was wrong in the message."""

    message = json.dumps({"type": "x", "event_id": "a" * 900_000})
    with running({"loud": LoudToText()}, send_s=0.3) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/realtime?intent=transcription&model=loud"
        with connect(url, compression=None, ping_interval=None) as client:
            timer = threading.Timer(5, client.socket.shutdown, (socket.SHUT_RDWR,))
            timer.start()  # a message that the server does not take waits
            with suppress(ConnectionClosed):
                for _ in range(60):
                    client.send(message)
            wait_until(lambda: not server.connections)
            assert timer.is_alive()
            timer.cancel()
