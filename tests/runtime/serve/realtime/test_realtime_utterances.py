"""The utterances of a session: their ids, texts and ends, and updates between them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import websockets
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import FrenchToText, LoudToText
from support.serve.realtime_client import (
    COMPLETED,
    MISTRAL,
    OPENAI,
    SOUND,
    TEXT,
    VLLM,
    Socket,
    append,
    held_server,
    kinds,
    pcm,
    talk,
    update,
)

from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.single_stream import SingleStreamBatch
from voxport.runtime.speech_to_text import LiveStream


def worker_of(server: RunningServer) -> TranscriptionWorker:
    return server.models.transcription_workers["loud"]


async def end_audio(socket: Socket) -> None:
    """A whole recording in Mistral's dialect."""
    assert (await socket.receive())["type"] == "session.created"
    await append(socket, pcm(), "input_audio.append")
    await socket.send("input_audio.end")


async def two_texts(socket: Socket) -> list[str]:
    return [(await socket.until(COMPLETED))[-1]["transcript"] for _ in range(2)]


def test_mistral_refuses_messages_after_the_end_and_closes_after_the_text() -> None:
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
        return await socket.rest()

    with held_server() as (server, gate):
        messages, code = talk(server, conversation, MISTRAL)
    assert messages[-1]["type"] == "transcription.done" and messages[-1]["text"] == TEXT and code == 1000


def test_mistral_notices_a_client_that_leaves_after_the_end() -> None:
    """The engine is held, so that only the handler of the socket can cancel the job."""

    async def conversation(socket: Socket) -> None:
        await end_audio(socket)
        while not worker_of(server)._live:
            await asyncio.sleep(0.01)

    with held_server() as (server, _):
        talk(server, conversation, MISTRAL)
        wait_until(lambda: all(job.is_cancelled for job in worker_of(server)._live), 1)


def test_mistral_closes_the_socket_after_an_error_of_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("planted")

    task = LoudToText()
    with running({"loud": task}) as server:
        task.before_feed = fail

        async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
            await socket.receive()
            await socket.send("input_audio.append", audio=SOUND)
            return await socket.rest()

        messages, code = talk(server, conversation, MISTRAL)
    assert [message["type"] for message in messages] == ["error"] and code == 1000


def test_after_an_error_of_the_engine_the_rest_of_an_utterance_is_refused() -> None:
    task, calls = LoudToText(), list[int]()

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("planted")

    with running({"loud": task}) as server:
        task.before_feed = fail_once

        async def conversation(socket: Socket) -> list[dict[str, Any]]:
            await append(socket, pcm(24000))
            await socket.until("conversation.item.input_audio_transcription.failed")
            await append(socket, pcm(24000))
            await socket.send("input_audio_buffer.commit")
            refused = await socket.until("error")
            await socket.say()
            return [*refused, *await socket.until(COMPLETED)]

        events = talk(server, conversation, OPENAI)
    assert kinds(events) == ["error", "committed", "added", "done", "completed"]
    assert events[-1]["transcript"] == TEXT


@pytest.mark.parametrize(
    ("path", "send", "kind"), [(OPENAI, Socket.say, COMPLETED), (MISTRAL, end_audio, "transcription.done")]
)
def test_a_client_that_waits_for_its_text_is_not_silent(
    path: str, send: Callable[[Socket], Coroutine[Any, Any, None]], kind: str
) -> None:
    with held_server(Limits(silent_socket_s=0.3)) as (server, gate):

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
            return await socket.rest()

        messages, code = talk(server, conversation, OPENAI)
        assert messages[-1]["error"]["code"] == "session_idle" and code == 1000
        wait_until(lambda: worker_of(server).is_idle, 0.5)


def test_the_next_utterance_takes_the_live_stream_of_the_one_before() -> None:
    """One stream is all there is. Another client gets it only after both. A clear needs no second one."""
    with held_server() as (server, gate):
        worker = worker_of(server)
        worker.live_slots = 1

        async def other() -> str:
            async with websockets.connect(f"ws://127.0.0.1:{server.port}{OPENAI}") as socket:
                client = Socket(socket)
                await client.send("input_audio_buffer.append", audio=SOUND)
                return str((await client.until("error"))[-1]["error"]["code"])

        async def conversation(socket: Socket) -> list[str]:
            await socket.say()
            await socket.send("input_audio_buffer.append", audio=SOUND)
            await socket.send("input_audio_buffer.clear")
            await socket.until("input_audio_buffer.cleared")
            await socket.say()
            await socket.until("conversation.item.done")
            assert await other() == "server_is_overloaded"
            gate.set()
            return await two_texts(socket)

        assert talk(server, conversation, OPENAI) == [TEXT, TEXT]
        wait_until(lambda: worker.is_idle, 0.5)


def test_a_third_utterance_waits_for_the_first() -> None:
    """So a client cannot make the server keep more audio than two utterances have."""

    async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
        for _ in range(3):
            await append(socket, pcm(24000)[:4])
            await socket.send("input_audio_buffer.commit")
        return await socket.rest()

    with held_server(Limits(ahead_s=0.5)) as (server, _):
        messages, code = talk(server, conversation, OPENAI)
    committed = [message for message in messages if message["type"] == "input_audio_buffer.committed"]
    assert len(committed) == 2 and code == 1013
    assert messages[-1]["error"]["code"] == "audio_too_far_ahead"


def test_a_client_that_leaves_frees_the_utterances_that_wait() -> None:
    with held_server() as (server, gate):
        worker = worker_of(server)

        async def conversation(socket: Socket) -> None:
            await socket.say()
            await socket.say()
            while not worker._queued_utterances:
                await asyncio.sleep(0.01)

        talk(server, conversation, OPENAI)
        gate.set()
        wait_until(lambda: worker.is_idle, 1)


def test_items_and_events_have_ids_of_their_own_after_an_update(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        events = [await socket.receive()]
        for _ in range(2):
            await socket.post(update(transcription=dict(model="loud")))
            events.append(await socket.receive())
            await socket.say()
            events += await socket.until(COMPLETED)
        return events

    events = talk(server, conversation, OPENAI)
    ids = [event["event_id"] for event in events]
    assert len(set(ids)) == len(ids), "the greeting included"
    committed = [event for event in events if event["type"] == "input_audio_buffer.committed"]
    assert len({event["item_id"] for event in committed}) == 2
    assert [event["previous_item_id"] for event in committed] == [None, committed[0]["item_id"]]


def test_fields_that_an_update_leaves_out_stay_and_null_resets_them(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> Any:
        await socket.receive()
        found = []
        for fields in ({"language": "en", "delay": "xhigh"}, {}, {"delay": None}):
            await socket.post(update(transcription=fields))
            transcription = (await socket.receive())["session"]["audio"]["input"]["transcription"]
            found.append((transcription["model"], transcription["language"], transcription["delay"]))
        return found

    expected = [("loud", "en", "xhigh")] * 2 + [("loud", "en", None)]
    assert talk(server, conversation, OPENAI) == expected


def test_a_model_without_the_language_of_the_session_is_refused_and_the_error_says_what_to_send() -> None:
    with running({"loud": LoudToText(), "french": FrenchToText()}, is_strict=True) as server:

        async def conversation(socket: Socket) -> Any:
            await socket.receive()
            found = []
            for fields in (
                {"language": "en"},
                {"model": "french"},
                {"model": "french", "language": "en"},
                {},
                {"model": "french", "language": None},
                {"language": "fr"},
                {"model": "loud", "language": "en"},
            ):
                await socket.post(update(transcription=fields))
                answer = await socket.receive()
                if answer["type"] == "error":
                    found.append((answer["error"]["param"].rpartition(".")[2], answer["error"]["message"]))
                else:
                    now = answer["session"]["audio"]["input"]["transcription"]
                    found.append((now["model"], now["language"]))
            return found

        found = talk(server, conversation, OPENAI)
    reason = "session.audio.input.transcription.language: 'en' is no language of french; expected one of fr, "
    reason += "or auto and the model detects which one it is"
    assert found == [
        ("loud", "en"),
        ("language", reason),
        ("language", reason),
        ("loud", "en"),
        ("french", None),
        ("french", "fr"),
        ("loud", "en"),
    ]


@pytest.mark.parametrize("path", [OPENAI, f"{VLLM}?model=loud"])
def test_the_greeting_names_the_model_of_the_path(server: RunningServer, path: str) -> None:
    greeting = talk(server, Socket.receive, path)
    assert greeting["session"]["audio"]["input"]["transcription"]["model"] == "loud"


def test_the_model_cannot_change_before_the_text_of_an_utterance_is_sent() -> None:
    """With another model, the text would come from a worker that the session has left."""
    slow = LoudToText()
    with running({"slow": slow, "other": LoudToText()}) as server:
        worker = server.models.transcription_workers["slow"]

        async def conversation(socket: Socket) -> Any:
            await socket.receive()
            await socket.send("session.update", model="slow")
            await append(socket, pcm())
            held = asyncio.Event()
            loop = asyncio.get_running_loop()
            slow.before_feed = lambda: asyncio.run_coroutine_threadsafe(held.wait(), loop).result(5)
            await socket.send("input_audio_buffer.commit", final=True)
            await socket.send("session.update", model="other")
            refused = await socket.until("error")
            slow.before_feed = lambda: None
            held.set()
            done = await socket.until("transcription.done")
            await socket.send("session.update", model="other")  # now it can
            await socket.send("input_audio_buffer.commit", final=True)
            return refused[-1]["code"], done[-1]["text"], (await socket.receive())["error"]

        code, text, error = talk(server, conversation, VLLM)
        assert (code, text) == ("session_busy", TEXT) and "no audio" in error
        wait_until(lambda: worker.is_idle)


def test_a_place_that_cannot_be_freed_ends_no_other_session(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []

    def fail_once(batch: SingleStreamBatch, stream: LiveStream) -> None:
        freed.append(stream)
        if len(freed) == 1:
            raise RuntimeError("no memory")
        end(batch, stream)

    with running({"loud": LoudToText()}) as server:
        worker = server.models.transcription_workers["loud"]
        end = SingleStreamBatch.end
        monkeypatch.setattr(SingleStreamBatch, "end", fail_once)

        async def leave(socket: Socket) -> None:
            await socket.receive()
            await append(socket, pcm(24000))
            await socket.until("conversation.item.input_audio_transcription.delta")

        talk(server, leave, OPENAI)
        wait_until(lambda: len(freed) == 1)

        async def transcribe(socket: Socket) -> str:
            await socket.receive()
            await socket.say()
            return str((await socket.until(COMPLETED))[-1]["transcript"])

        assert talk(server, transcribe, OPENAI) == TEXT
        assert worker.is_ready
