"""Live transcription: keys, limits of sessions, clients that leave, and the end of the server."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, cast

import pytest
import websockets
from starlette.websockets import WebSocket
from support.serve import http_server
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import LoudToText
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
    pcm,
    talk,
)
from uvicorn.config import Config

from voxport.runtime.serve.errors import SessionEnds
from voxport.runtime.serve.http.access import Keys
from voxport.runtime.serve.http.server import configuration
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection

PING_S = 0.2


def test_a_socket_needs_a_key_and_has_an_id_and_the_subprotocol_of_browsers() -> None:
    key = "k" * 20
    with running({"loud": LoudToText()}, keys=Keys({"anna": sha256(key.encode()).digest()})) as server:
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            talk(server, Socket.receive)
        assert refused.value.response.status_code == 401

        async def conversation(socket: Socket) -> tuple[str | None, str]:
            assert socket.socket.response
            return socket.socket.subprotocol, socket.socket.response.headers["x-request-id"]

        protocols = ["realtime", f"openai-insecure-api-key.{key}"]
        subprotocol, number = talk(server, conversation, subprotocols=protocols)
        assert subprotocol == "realtime" and number.startswith("req_")


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

    async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
        if not is_first:
            await socket.send("session.update", **update)
        return await socket.rest()

    limits = Limits(body_s=0.2) if is_first else Limits(silent_socket_s=0.2, body_s=60)
    with running({"loud": LoudToText()}, limits) as server:
        messages, code = talk(server, conversation, path)
        assert code == 1000 and error_code(messages[-1]) == expected


def test_a_long_session_ends_under_steady_sound() -> None:
    async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
        async def sound() -> None:
            while True:
                await socket.send("input_audio_buffer.append", audio=SOUND)
                await asyncio.sleep(0.02)

        sending = asyncio.create_task(sound())
        messages, code = await socket.rest()
        sending.cancel()
        return messages, code

    with running({"loud": LoudToText()}, Limits(session_s=0.3)) as server:
        messages, code = talk(server, conversation, OPENAI)
        assert error_code(messages[-1]) == "session_expired" and code == 1000


def test_a_large_message_ends_the_socket() -> None:
    async def conversation(socket: Socket) -> int:
        await socket.socket.send("a" * 200_000)
        return (await socket.rest())[1]

    with running({"loud": LoudToText()}, Limits(message_mib=0.1)) as server:
        assert talk(server, conversation, OPENAI) == 1009


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
        models = Models({}, limits)
        await Connection(cast(Any, OtherServer()), models).receive(Idle())

    with pytest.raises(SessionEnds) as raised:
        asyncio.run(receive())
    assert raised.value.error.code == "message_too_large"


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
            await append(socket, 12 * pcm(24000))
            await socket.send("input_audio_buffer.commit")
            return await socket.until(COMPLETED)

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
    server: RunningServer,
    path: str,
    end: tuple[str, dict[str, bool]],
    refuse_next: Callable[[RunningServer], None],
) -> None:
    """Otherwise its text would begin in the middle. Its start and its end have an error, and nothing between.
    The utterance after it is transcribed.
    """

    async def conversation(socket: Socket) -> tuple[list[str | int], str | None]:
        await socket.receive()
        if path == VLLM:
            await socket.send("session.update", model="loud")
        refuse_next(server)
        codes = []
        await socket.send("input_audio_buffer.append", audio=SOUND)
        codes.append(error_code(await socket.receive()))
        for _ in range(20):
            await socket.send("input_audio_buffer.append", audio=SOUND)
        await socket.send(end[0], **end[1])
        codes.append(error_code(await socket.receive()))
        await append(socket, pcm(24000 if path == OPENAI else 16000))
        await socket.send(end[0], **end[1])
        done = (await socket.until(COMPLETED if path == OPENAI else "transcription.done"))[-1]
        return codes, done.get("transcript", done.get("text"))

    codes, text = talk(server, conversation, path)
    assert codes == ["server_is_overloaded"] * 2
    assert text == TEXT


def test_audio_that_is_too_far_ahead_ends_the_session() -> None:
    async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
        await append(socket, [bytes(48000)] * 3)
        return await socket.rest()

    with held_server(Limits(ahead_s=0.5)) as (server, _):
        messages, code = talk(server, conversation, OPENAI)
    assert code == 1013 and error_code(messages[-1]) == "audio_too_far_ahead"


def test_sockets_beyond_their_number_are_refused_until_another_one_closes() -> None:
    async def conversation(server: RunningServer) -> None:
        address = f"ws://127.0.0.1:{server.port}{OPENAI}"
        opened = await websockets.connect(address)
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await websockets.connect(address)
        answer = refused.value.response
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
        assert json.loads(answer.body)["error"]["code"] == "server_is_overloaded"
        await opened.close()
        await asyncio.to_thread(wait_until, lambda: server.metric("sockets") == 0)
        await (await websockets.connect(address)).close()

    with running({"loud": LoudToText()}, Limits(sockets=1)) as server:
        asyncio.run(conversation(server))


def test_a_server_that_shuts_down_closes_its_sockets() -> None:
    with running({"loud": LoudToText()}) as server:

        async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
            await asyncio.to_thread(server.models.drain, 1)
            return await socket.rest()

        messages, code = talk(server, conversation, OPENAI)
        assert code == 1012 and error_code(messages[-1]) == "server_shutting_down"


def test_a_server_that_shuts_down_sends_the_text_of_the_audio_so_far() -> None:
    """It takes longer than the server looks at its sockets. New sockets and utterances are refused."""
    with held_server() as (server, gate):

        async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
            await socket.say()
            await socket.say()
            await socket.until("conversation.item.done")
            await socket.until("conversation.item.done")
            ending = asyncio.create_task(asyncio.to_thread(server.models.drain, 10))
            await asyncio.sleep(1)
            with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
                await websockets.connect(f"ws://127.0.0.1:{server.port}{OPENAI}")
            assert refused.value.response.status_code == 503
            gate.set()
            found = await socket.rest()
            await ending
            return found

        messages, code = talk(server, conversation, OPENAI)
        assert [each["transcript"] for each in messages if each["type"] == COMPLETED] == [TEXT, TEXT]
        assert code == 1012 and error_code(messages[-1]) == "server_shutting_down"


def test_what_is_still_transcribed_when_the_time_is_over_fails() -> None:
    """An utterance that begins meanwhile is refused."""
    with held_server() as (server, gate):

        async def conversation(socket: Socket) -> tuple[list[dict[str, Any]], int]:
            await socket.say()
            await socket.until("conversation.item.done")
            ending = asyncio.create_task(asyncio.to_thread(server.models.drain, 0.2))
            await asyncio.sleep(0.1)
            await socket.send("input_audio_buffer.append", audio=SOUND)
            assert error_code((await socket.until("error"))[-1]) == "server_shutting_down"
            await asyncio.sleep(0.4)
            gate.set()
            await ending
            return await socket.rest()

        messages, code = talk(server, conversation, OPENAI)
        (failed,) = [each for each in messages if each["type"].endswith("failed")]
        assert failed["error"]["code"] == "server_shutting_down" and code == 1012
