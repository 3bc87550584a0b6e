"""A client that receives slowly keeps its connection: each look finds fewer unsent bytes."""

import asyncio
import json
import logging
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from support.serve.certificates import certificate
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import VLLM
from support.serve.speech_requests import speech_body
from support.serve.tone_speech import FRAME, ToneSpeech
from support.serve.wyoming_fixture import WyomingFixture, wyoming_fixture
from websockets.sync.client import connect

from voxport.runtime.serve.limits import Limits

SEND_S, PAUSE_S, PIECE_BYTES = 1.0, 0.1, 4096  # 40 KB/s
BUFFER_BYTES = 16_384  # of the sockets: a socket is writable again when a third of its buffer is free
ANSWERS, ANSWER_BYTES = 3, 60_000
TLS_ANSWERS = 14  # more than the 512 KiB of asyncio's TLS layer, which passes them on when 64 KiB are sent
FRAMES, FRAME_BYTES = 16, 2 * FRAME  # of an answer with 16-bit samples
UPGRADE = (
    "GET /v1/realtime?intent=transcription&model=loud HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
    "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def connected(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    client.settimeout(5)
    client.connect(("127.0.0.1", port))
    return client


def receive_slowly(client: socket.socket, count: int, pause_s: float = PAUSE_S) -> float:
    """Receives so many bytes. Returns the seconds that it took."""
    started = time.monotonic()
    while count > 0:
        piece = client.recv(PIECE_BYTES)
        assert piece, f"the server closed the connection with {count} bytes to come"
        count -= len(piece)
        time.sleep(pause_s)
    return time.monotonic() - started


def frame(message: dict[str, Any]) -> bytes:
    """A text frame of a client; its mask changes nothing."""
    content = json.dumps(message).encode()
    return b"\x81\xff" + len(content).to_bytes(8, "big") + bytes(4) + content


def make_buffer_small(server: RunningServer) -> None:
    """That of the only connection."""
    wait_until(lambda: server.connections)
    (connection,) = server.connections
    sender = connection.transport.get_extra_info("socket")
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)


def ask(server: RunningServer, client: socket.socket, count: int) -> None:
    """Opens a live session and sends so many messages, whose answers are as long as they are."""
    client.sendall(UPGRADE.encode())
    assert client.recv(PIECE_BYTES).startswith(b"HTTP/1.1 101 ")
    make_buffer_small(server)
    for _ in range(count):
        client.sendall(frame({"type": "x", "event_id": "a" * ANSWER_BYTES}))


def test_a_slow_client_of_a_socket_gets_every_answer() -> None:
    """Each answer repeats what was wrong. The last one is sent when the client has received the others."""
    with running({"loud": LoudToText()}, Limits(send_s=SEND_S)) as server, connected(server.port) as client:
        ask(server, client, ANSWERS)
        assert receive_slowly(client, ANSWERS * ANSWER_BYTES) > 2 * SEND_S
        assert len(server.connections) == 1


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server and of its client."""
    chain, key = certificate(tmp_path)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(chain, key)
    return own, ssl.create_default_context(cafile=chain)


def test_a_slow_client_of_a_socket_gets_every_answer_over_tls(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """It is slow until what was unsent at first has been sent."""
    own, other = certificates
    with (
        running({"loud": LoudToText()}, Limits(send_s=SEND_S), tls=own) as server,
        other.wrap_socket(connected(server.port), server_hostname="127.0.0.1") as client,
    ):
        ask(server, client, TLS_ANSWERS)
        assert receive_slowly(client, 3 * ANSWER_BYTES) > 2 * SEND_S
        receive_slowly(client, (TLS_ANSWERS - 3) * ANSWER_BYTES, pause_s=0)
        assert len(server.connections) == 1


def test_a_socket_over_tls_that_has_ended_leaves_no_error(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """The timers of its connection run on for `send_s`."""
    own, other = certificates
    with running({"loud": LoudToText()}, Limits(send_s=SEND_S), tls=own) as server:
        with connect(f"wss://127.0.0.1:{server.port}{VLLM}", ssl=other) as client:
            client.recv(5)
        wait_until(lambda: not server.connections)
        time.sleep(2 * SEND_S)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_slow_client_of_wyoming_gets_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = asyncio.StreamReaderProtocol.connection_made

    def with_small_buffer(stream: asyncio.StreamReaderProtocol, transport: asyncio.Transport) -> None:
        sender = transport.get_extra_info("socket")
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        made(stream, transport)

    monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_made", with_small_buffer)

    def ask_slowly(fixture: WyomingFixture) -> float:
        event = {"type": "ping", "data": {"text": "x" * ANSWER_BYTES}}
        with connected(fixture.port) as client:
            client.sendall(ANSWERS * (json.dumps(event).encode() + b"\n"))
            return receive_slowly(client, ANSWERS * ANSWER_BYTES)

    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client():
            assert await asyncio.to_thread(ask_slowly, fixture) > 2 * SEND_S

    with wyoming_fixture(send_s=SEND_S) as fixture:
        asyncio.run(scenario(fixture))


def test_a_slow_client_gets_the_end_of_an_answer_over_tls(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio would end a connection that closes after 30 s, however much its client receives."""
    monkeypatch.setattr("asyncio.sslproto.constants.SSL_SHUTDOWN_TIMEOUT", SEND_S / 4)
    own, other = certificates
    content = json.dumps(speech_body(input=FRAMES * "a")).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    with (
        running({"tone": ToneSpeech()}, Limits(send_s=SEND_S), tls=own) as server,
        other.wrap_socket(connected(server.port), server_hostname="127.0.0.1") as client,
    ):
        make_buffer_small(server)
        client.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        assert receive_slowly(client, FRAMES * FRAME_BYTES) > SEND_S
        wait_until(lambda: not server.connections, 3 * SEND_S)
