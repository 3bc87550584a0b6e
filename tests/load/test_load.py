"""A few seconds of load. Times are not compared: `python -m load` does that on a quiet machine."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import websockets
from support.serve import leaving
from support.serve.http_server import RunningServer

from load import cancels
from load.__main__ import LoadOptions, run
from load.clients import Results, forever, speak, transcribe
from load.server import machine

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
NOW = struct.pack("ii", 1, 0)  # a connection that is closed is reset


@pytest.mark.slow  # takes several seconds
def test_every_accepted_answer_is_whole_and_every_refusal_has_a_time_to_retry() -> None:
    found = run(LoadOptions(seconds=5, clients=80, sockets=8))
    assert found["examples_of_wrong"] == [] and found["wrong"] == 0
    assert found["served"]["talking"] > 0 and found["served"]["utterance"] > 0
    assert found["refused"]["503"] > 0 and found["served"]["garbage"] > 0
    assert found["machine"].keys() == machine().keys()
    assert found["pauses"]["slow"] > 0 and "pauses" not in found["missed"]
    assert found["objects_without_collection"] > 10_000
    assert 0 < found["server_refusal_ms"]["p50"] <= found["refusal_ms"]["max"]


@pytest.mark.slow  # takes several seconds
def test_what_clients_that_leave_leave_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One descriptor, and a client and a socket that did not come."""
    leave, leave_sockets, files = leaving.leave, leaving.leave_sockets, []

    def leave_a_file(server: RunningServer, count: int) -> None:
        leave(server, count - 1)
        files.append(socket.socket())

    monkeypatch.setattr(cancels, "leave", leave_a_file)
    monkeypatch.setattr(cancels, "leave_sockets", lambda server, count: leave_sockets(server, count - 1))
    found = cancels.run(20)
    assert found["left"] == {"descriptors": 1, "requests": 1, "sockets": 1} and len(files) == 2
    for file in files:
        file.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("load.clients.ARRIVAL_S", 0)


async def visited(visit: Callable[[], Awaitable[object]], results: Results) -> list[str]:
    """What a client finds wrong in its first visit."""
    visiting = asyncio.create_task(forever(visit))
    async with asyncio.timeout(10):
        while not results.wrong:
            await asyncio.sleep(0.01)
    found = list(results.wrong)  # the next visit is wrong too when it is cancelled
    visiting.cancel()
    return found


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", ["talking", "slow"])
@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"4\r\nabcd\r\n"], ids=["nothing", "a head", "a piece"])
def test_an_answer_that_the_server_resets_is_wrong(sent: bytes, kind: str) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await asyncio.sleep(0.1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
        writer.transport.abort()

    async def check() -> list[str]:
        async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
            results, port = Results(), server.sockets[0].getsockname()[1]
            return await visited(partial(speak, port, "anna", kind, results), results)

    (wrong,) = asyncio.run(check())
    assert wrong.startswith(f"{kind}: ")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("code", [1011, 1013])
def test_a_socket_that_the_server_closes_is_wrong(code: int) -> None:
    async def close(connection: websockets.ServerConnection) -> None:
        await connection.send(json.dumps({"type": "session.created"}))
        await connection.recv()
        await connection.close(code)

    async def check() -> list[str]:
        async with websockets.serve(close, "127.0.0.1", 0) as server:
            results, port = Results(), next(iter(server.sockets)).getsockname()[1]
            return await visited(partial(transcribe, port, "carol", results), results)

    (wrong,) = asyncio.run(check())
    assert str(code) in wrong
