"""Live transcription: keys, limits of sessions, clients that leave, and the end of the server."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, cast

import pytest
import websockets
from starlette.websockets import WebSocket
from support.serve import http_server
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import MISTRAL, OPENAI, SOUND, VLLM, Socket, pcm, talk, text_of
from uvicorn.config import Config

from voxport.runtime.serve.errors import SessionEnds, overloaded
from voxport.runtime.serve.http.access import Keys
from voxport.runtime.serve.http.server import configuration
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.openai_dialect import TEXT
from voxport.runtime.serve.realtime.session import Connection

PING_S = 0.2


def test_keys_and_origins_of_sockets() -> None:
    key = "k" * 20
    hashes = {"anna": sha256(key.encode()).digest()}
    with running({"loud": LoudToText()}, keys=Keys(hashes)) as server:
        for options, status in (({}, 401), ({"origin": "http://evil.example"}, 403)):
            with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
                talk(server, Socket.receive, **options)
            assert refused.value.response.status_code == status
        created = talk(server, Socket.receive, additional_headers={"authorization": f"Bearer {key}"})
        assert created["type"] == "session.created"

        async def conversation(socket: Socket) -> websockets.Subprotocol | None:
            return socket.socket.subprotocol

        protocols = ["realtime", f"openai-insecure-api-key.{key}"]
        assert talk(server, conversation, subprotocols=protocols) == "realtime"


def closing_code(
    server: RunningServer,
    conversation: Callable[[Socket], Awaitable[object]],
    path: str = OPENAI,
) -> tuple[int, list[dict[str, Any]]]:
    """The code with which the server closes the socket, and its last messages."""

    async def run(socket: Socket) -> tuple[int, list[dict[str, Any]]]:
        messages = []
        try:
            await socket.receive()
            await conversation(socket)
            while True:
                messages.append(await socket.receive())
        except websockets.exceptions.ConnectionClosed as closed:
            assert closed.rcvd
            return closed.rcvd.code, messages

    return talk(server, run, path)


def error_code(message: dict[str, Any]) -> str | int:
    """The code of an error event; vLLM's dialect has it beside the text of the error."""
    assert message["type"] == "error"
    found: str | int = message["code"] if isinstance(message["error"], str) else message["error"]["code"]
    return found


@pytest.mark.parametrize(
    ("path", "update", "expected"),
    [
        pytest.param(OPENAI, {"session": {}}, "session_idle", id="openai"),
        pytest.param(VLLM, {"model": "loud"}, "session_idle", id="vllm"),
        pytest.param(MISTRAL, {"session": {}}, 3001, id="mistral"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_silent_socket_ends(path: str, update: dict[str, str], expected: str | int, is_first: bool) -> None:
    """The limit of the first message does not apply to a later one."""

    async def conversation(socket: Socket) -> None:
        if not is_first:
            await socket.send("session.update", **update)

    limits = Limits(body_s=0.2) if is_first else Limits(silent_socket_s=0.2, body_s=60)
    with running({"loud": LoudToText()}, limits) as server:
        code, messages = closing_code(server, conversation, path)
        assert code == 1000 and error_code(messages[-1]) == expected


def test_a_long_session_ends_under_steady_sound() -> None:
    async def conversation(socket: Socket) -> None:
        async def sound() -> None:
            while True:
                await socket.send("input_audio_buffer.append", audio=SOUND)
                await asyncio.sleep(0.02)

        sending = asyncio.create_task(sound())
        assert (await socket.until("error"))[-1]["error"]["code"] == "session_expired"
        sending.cancel()

    with running({"loud": LoudToText()}, Limits(session_s=0.3)) as server:
        assert closing_code(server, conversation)[0] == 1000


def test_a_large_message_ends_the_socket() -> None:
    async def conversation(socket: Socket) -> None:
        await socket.socket.send("a" * 200_000)

    with running({"loud": LoudToText()}, Limits(message_mib=0.1)) as server:
        assert closing_code(server, conversation)[0] == 1009


@pytest.mark.parametrize("content", [{"text": "\u00e9" * 60_000}, {"bytes": bytes(120_000)}])
def test_a_large_message_ends_the_socket_of_a_server_without_that_limit(
    content: dict[str, str | bytes],
) -> None:
    class OtherServer:
        async def receive(self) -> dict[str, Any]:
            return {"type": "websocket.receive", **content}

    class Idle:
        is_busy = is_incomplete = False

    async def receive() -> None:
        limits = Limits(message_mib=0.1)
        models = Models({}, limits, Metrics())
        await Connection(cast(Any, OtherServer()), models, limits).receive(Idle())

    with pytest.raises(SessionEnds) as raised:
        asyncio.run(receive())
    assert raised.value.error.code == "message_too_large"


def test_audio_that_is_too_far_ahead_ends_the_session() -> None:
    task = LoudToText()
    with running({"loud": task}, Limits(ahead_s=0.5)) as server:
        task.before_feed = lambda: time.sleep(1)

        async def conversation(socket: Socket) -> None:
            for _ in range(3):
                await socket.send("input_audio_buffer.append", audio=text_of(b"\0\0" * 24000))

        code, messages = closing_code(server, conversation)
        assert code == 1013 and messages[-1]["error"]["code"] == "audio_too_far_ahead"


def test_a_client_that_sends_faster_than_real_time_gets_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers to pings wait behind its own audio, which the server reads as it transcribes."""

    def quick(*arguments: Any) -> Config:
        """Both times of pings are a hundredth."""
        config = configuration(*arguments)
        config.ws_ping_interval, config.ws_ping_timeout = PING_S, (config.ws_ping_timeout or 0) / 100
        return config

    monkeypatch.setattr(http_server, "configuration", quick)
    task = LoudToText()
    with running({"loud": task}, Limits(ahead_s=0.5)) as server:
        task.before_feed = lambda: time.sleep(0.02)

        async def conversation(socket: Socket) -> list[dict[str, Any]]:
            for block in 12 * pcm(24000):
                await socket.send("input_audio_buffer.append", audio=text_of(block))
            await socket.send("input_audio_buffer.commit")
            return await socket.until(f"{TEXT}.completed")

        started = time.monotonic()
        text = talk(server, conversation, OPENAI)[-1]["transcript"]
        assert len(text.split()) == 36 and time.monotonic() - started > 5 * PING_S


@pytest.mark.parametrize("path", [OPENAI, VLLM, MISTRAL])
def test_a_socket_that_closes_right_after_its_handshake_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """The server takes a while between the handshake and its first message."""
    accept = WebSocket.accept

    async def accept_slowly(*arguments: Any, **options: Any) -> None:
        await accept(*arguments, **options)
        await asyncio.sleep(0.1)

    async def leave(socket: Socket) -> None: ...

    monkeypatch.setattr(WebSocket, "accept", accept_slowly)
    with running({"loud": LoudToText()}) as server:
        talk(server, leave, path)
        wait_until(lambda: server.metric("requests_total", route=path.partition("?")[0], code="101"))
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("path", "end"),
    [
        (OPENAI, ("input_audio_buffer.commit", {})),
        (VLLM, ("input_audio_buffer.commit", {"final": True})),
    ],
)
def test_an_utterance_whose_start_was_refused_is_refused_whole(
    path: str, end: tuple[str, dict[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its text would begin in the middle. The utterance after it is transcribed."""
    with running({"loud": LoudToText()}) as server:
        worker = server.models.transcription_workers["loud"]

        def refuse(*_: object) -> None:
            raise overloaded("no live stream is free", 1)

        async def conversation(socket: Socket) -> tuple[list[str | int], str | None]:
            await socket.receive()
            if path == VLLM:
                await socket.send("session.update", model="loud")
            monkeypatch.setattr(worker, "submit_live", refuse)
            codes = []
            for _ in range(2):
                await socket.send("input_audio_buffer.append", audio=SOUND)
                codes.append(error_code(await socket.receive()))
                monkeypatch.undo()
            await socket.send(end[0], **end[1])
            codes.append(error_code(await socket.receive()))
            for block in pcm(24000 if path == OPENAI else 16000):
                await socket.send("input_audio_buffer.append", audio=text_of(block))
            await socket.send(end[0], **end[1])
            last = f"{TEXT}.completed" if path == OPENAI else "transcription.done"
            done = (await socket.until(last))[-1]
            return codes, done.get("transcript", done.get("text"))

        codes, text = talk(server, conversation, path)
    assert codes == ["server_is_overloaded"] * 3
    assert text == "one two three"


def test_the_sixty_fifth_socket_is_refused_until_another_one_closes() -> None:
    with running({"loud": LoudToText()}) as server:
        address = f"ws://127.0.0.1:{server.port}{OPENAI}"

        async def conversation() -> None:
            opened = [await websockets.connect(address) for _ in range(64)]
            with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
                await websockets.connect(address)
            answer = refused.value.response
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
            assert json.loads(answer.body)["error"]["code"] == "server_is_overloaded"
            await opened.pop().close()
            await asyncio.to_thread(wait_until, lambda: server.metric("sockets") == 63)
            opened.append(await websockets.connect(address))
            await asyncio.gather(*(socket.close() for socket in opened))

        asyncio.run(conversation())


def test_a_server_that_shuts_down_closes_its_sockets(server: RunningServer) -> None:
    with running({"loud": LoudToText()}) as other:

        async def conversation(socket: Socket) -> None:
            await asyncio.to_thread(other.models.drain, 1)

        code, messages = closing_code(other, conversation)
        assert code == 1012 and messages[-1]["error"]["code"] == "server_shutting_down"


async def commit(socket: Socket) -> None:
    for block in pcm(24000):
        await socket.send("input_audio_buffer.append", audio=text_of(block))
    await socket.send("input_audio_buffer.commit")
    await socket.until("conversation.item.done")


def test_a_server_that_shuts_down_sends_the_text_of_the_audio_so_far() -> None:
    """It takes longer than the server looks at its sockets. New sockets and utterances are refused."""
    task, gate = LoudToText(), threading.Event()
    with running({"loud": task}) as server:
        task.before_feed = lambda: gate.wait(10)

        async def conversation(socket: Socket) -> None:
            await commit(socket)
            ending = asyncio.create_task(asyncio.to_thread(server.models.drain, 10))
            await asyncio.sleep(1)
            with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
                await websockets.connect(f"ws://127.0.0.1:{server.port}{OPENAI}")
            assert refused.value.response.status_code == 503
            await socket.send("input_audio_buffer.append", audio=SOUND)
            refusal = await socket.until("error")
            assert refusal[-1]["error"]["code"] == "server_shutting_down"
            gate.set()
            await ending

        code, messages = closing_code(server, conversation)
        transcripts = [each["transcript"] for each in messages if each["type"].endswith("completed")]
        assert transcripts == ["one two three"]
        assert code == 1012 and messages[-1]["error"]["code"] == "server_shutting_down"


def test_what_is_still_transcribed_when_the_time_is_over_fails() -> None:
    task, gate = LoudToText(), threading.Event()
    with running({"loud": task}) as server:
        task.before_feed = lambda: gate.wait(10)

        async def conversation(socket: Socket) -> None:
            await commit(socket)
            ending = asyncio.create_task(asyncio.to_thread(server.models.drain, 0.2))
            await asyncio.sleep(0.5)
            gate.set()
            await ending

        code, messages = closing_code(server, conversation)
        (failed,) = [each for each in messages if each["type"].endswith("failed")]
        assert failed["error"]["code"] == "server_shutting_down" and code == 1012
