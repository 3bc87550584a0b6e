"""What follows the end of an utterance: its text, the next utterance, or nothing more from the client."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import websockets
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import MISTRAL, OPENAI, SOUND, Socket, pcm, talk, text_of

from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.transcription.worker import TranscriptionWorker

COMPLETED = "conversation.item.input_audio_transcription.completed"
TEXT = "one two three"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Audio is transcribed once it is set."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def slow(gate: threading.Event) -> Iterator[RunningServer]:
    """A task that transcribes nothing before the gate is open."""
    task = LoudToText()
    with running({"loud": task}) as server:
        task.before_feed = lambda: gate.wait(10)
        yield server
        gate.set()  # the server waits for its engine when it stops


def worker_of(server: RunningServer) -> TranscriptionWorker:
    return server.models.transcription_workers["loud"]


async def end_audio(socket: Socket) -> None:
    """A whole recording in Mistral's dialect."""
    assert (await socket.receive())["type"] == "session.created"
    for block in pcm():
        await socket.send("input_audio.append", audio=text_of(block))
    await socket.send("input_audio.end")


async def commit(socket: Socket) -> None:
    """A whole utterance in OpenAI's dialect."""
    for block in pcm(24000):
        await socket.send("input_audio_buffer.append", audio=text_of(block))
    await socket.send("input_audio_buffer.commit")


async def commit_two(socket: Socket, worker: TranscriptionWorker) -> None:
    """Returns when the second utterance waits for the first."""
    await commit(socket)
    await commit(socket)
    while not worker._queued_utterances:
        await asyncio.sleep(0.01)


def texts_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["transcript"] for message in messages if message["type"] == COMPLETED]


async def rest_of(socket: Socket) -> tuple[list[dict[str, Any]], int]:
    """The messages until the server closes the socket, and its code."""
    messages = []
    try:
        while True:
            messages.append(await socket.receive())
    except websockets.exceptions.ConnectionClosed as closed:
        assert closed.rcvd
        return messages, closed.rcvd.code


def test_mistral_refuses_messages_after_the_end_and_closes_after_the_text(
    slow: RunningServer, gate: threading.Event
) -> None:
    async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
        await end_audio(socket)
        for kind, fields in (
            ("input_audio.append", {"audio": SOUND}),
            ("session.update", {"session": {}}),
            ("input_audio.end", {}),
        ):
            await socket.send(kind, **fields)
            error = (await socket.receive())["error"]
            assert (error["code"], error["message"]) == (3001, "the audio has ended; its text follows")
        gate.set()
        return await rest_of(socket)

    messages, code = talk(slow, conversation, MISTRAL)
    assert messages[-1]["type"] == "transcription.done" and messages[-1]["text"] == TEXT and code == 1000


def test_mistral_notices_a_client_that_leaves_after_the_end(slow: RunningServer) -> None:
    """The engine is held, so that only the handler of the socket can cancel the job."""

    async def conversation(socket: Socket) -> None:
        await end_audio(socket)
        while not worker_of(slow)._live:
            await asyncio.sleep(0.01)

    talk(slow, conversation, MISTRAL)
    wait_until(lambda: all(job.is_cancelled for job in worker_of(slow)._live), 1)


def test_mistral_closes_the_socket_after_an_error_of_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("planted")

    task = LoudToText()
    with running({"loud": task}) as server:
        task.before_feed = fail

        async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
            await socket.receive()
            await socket.send("input_audio.append", audio=SOUND)
            return await rest_of(socket)

        messages, code = talk(server, conversation, MISTRAL)
    assert [message["type"] for message in messages] == ["error"] and code == 1000


@pytest.mark.parametrize(
    ("path", "send", "kind"), [(OPENAI, commit, COMPLETED), (MISTRAL, end_audio, "transcription.done")]
)
def test_a_client_that_waits_for_its_text_is_not_silent(
    gate: threading.Event, path: str, send: Callable[[Socket], Coroutine[Any, Any, None]], kind: str
) -> None:
    task = LoudToText()
    with running({"loud": task}, Limits(silent_socket_s=0.3)) as server:
        task.before_feed = lambda: gate.wait(10)

        async def conversation(socket: Socket) -> list[dict[str, Any]]:
            await send(socket)
            await asyncio.sleep(0.6)
            gate.set()
            return await socket.until(kind)

        assert TEXT in talk(server, conversation, path)[-1].values()


def test_a_client_that_sends_nothing_more_of_an_utterance_is_silent() -> None:
    with running({"loud": LoudToText()}, Limits(silent_socket_s=0.3)) as server:

        async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
            await socket.receive()
            await socket.send("input_audio_buffer.append", audio=SOUND)
            return await rest_of(socket)

        messages, code = talk(server, conversation, OPENAI)
        assert messages[-1]["error"]["code"] == "session_idle" and code == 1000
        wait_until(lambda: worker_of(server).is_idle, 0.5)


def test_the_next_utterance_takes_the_live_stream_of_the_one_before(
    slow: RunningServer, gate: threading.Event
) -> None:
    """One stream is all there is. Another client gets it only after both."""
    worker = worker_of(slow)
    worker.live_slots = 1

    async def other() -> str:
        async with websockets.connect(f"ws://127.0.0.1:{slow.port}{OPENAI}") as socket:
            client = Socket(socket)
            await client.send("input_audio_buffer.append", audio=SOUND)
            return str((await client.until("error"))[-1]["error"]["code"])

    async def conversation(socket: Socket) -> list[str]:
        items = []
        for _ in range(2):
            await commit(socket)
            items.append((await socket.until("conversation.item.done"))[-1]["item"]["id"])
        assert await other() == "server_is_overloaded"
        gate.set()
        first, second = await socket.until(COMPLETED), await socket.until(COMPLETED)
        assert [first[-1]["item_id"], second[-1]["item_id"]] == items
        return [first[-1]["transcript"], second[-1]["transcript"]]

    assert talk(slow, conversation, OPENAI) == [TEXT, TEXT]
    wait_until(lambda: worker.is_idle, 0.5)


def test_audio_after_a_clear_needs_no_second_live_stream(slow: RunningServer, gate: threading.Event) -> None:
    worker_of(slow).live_slots = 1

    async def conversation(socket: Socket) -> list[str]:
        await commit(socket)
        for _ in range(2):
            await socket.send("input_audio_buffer.append", audio=SOUND)
            await socket.send("input_audio_buffer.clear")
            await socket.until("input_audio_buffer.cleared")
        await commit(socket)
        gate.set()
        return [(await socket.until(COMPLETED))[-1]["transcript"] for _ in range(2)]

    assert talk(slow, conversation, OPENAI) == [TEXT, TEXT]


def test_a_third_utterance_waits_for_the_first(gate: threading.Event) -> None:
    """So a client cannot make the server keep more audio than two utterances have."""
    task = LoudToText()
    with running({"loud": task}, Limits(ahead_s=0.5)) as server:
        task.before_feed = lambda: gate.wait(10)

        async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
            for _ in range(3):
                for block in pcm(24000)[:4]:
                    await socket.send("input_audio_buffer.append", audio=text_of(block))
                await socket.send("input_audio_buffer.commit")
            return await rest_of(socket)

        messages, code = talk(server, conversation, OPENAI)
        gate.set()
        committed = [message for message in messages if message["type"] == "input_audio_buffer.committed"]
        assert len(committed) == 2 and code == 1013
        assert messages[-1]["error"]["code"] == "audio_too_far_ahead"


def test_a_client_that_leaves_frees_the_utterances_that_wait(
    slow: RunningServer, gate: threading.Event
) -> None:
    async def conversation(socket: Socket) -> None:
        await commit_two(socket, worker_of(slow))

    talk(slow, conversation, OPENAI)
    gate.set()
    wait_until(lambda: worker_of(slow).is_idle, 1)


def test_a_server_that_shuts_down_transcribes_an_utterance_that_waits(
    slow: RunningServer, gate: threading.Event
) -> None:
    async def conversation(socket: Socket) -> list[str]:
        await commit_two(socket, worker_of(slow))
        ending = asyncio.create_task(asyncio.to_thread(slow.models.drain, 10))
        await asyncio.sleep(0.6)
        gate.set()
        texts = [(await socket.until(COMPLETED))[-1]["transcript"] for _ in range(2)]
        await ending
        return texts

    assert talk(slow, conversation, OPENAI) == [TEXT, TEXT]
