"""Requests as other clients and proxies write them, byte by byte."""

import socket
from collections.abc import Iterator

import pytest
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText

KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
SOCKET = b"GET /v1/realtime?intent=transcription&model=loud HTTP/1.1\r\nHost: localhost\r\n" + KEY
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"loud": LoudToText()}) as started:
        yield started


def status(server: RunningServer, request: bytes) -> bytes:
    """The status of the last answer; the requests before it have others."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(request + b"\r\n")
        return connection.makefile("rb").readline().split()[1]


@pytest.mark.parametrize(
    "lines",
    [
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nConnection: keep-alive\r\n",
        b"Connection: keep-alive\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
        b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket, foo\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: WebSocket\r\n",
        b"connection: , Upgrade ,\r\nUPGRADE: websocket\r\n",
    ],
)
def test_lists_of_a_handshake_have_any_form(server: RunningServer, lines: bytes) -> None:
    assert status(server, SOCKET + lines) == b"101"
    assert status(server, SOCKET.replace(b"GET /", b"GET http://localhost/") + lines) == b"101"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET /healthz HTTP/1.0\r\n", b"200"),
        (b"GET /v1/models HTTP/1.0\r\n", b"200"),
        (b"GET /healthz HTTP/1.0\r\nHost: evil.example\r\n", b"403"),
        (b"GET /healthz HTTP/1.1\r\n", b"400"),
        (b"GET http://127.0.0.1:8100/healthz HTTP/1.1\r\nHost: 127.0.0.1:8100\r\n", b"200"),
        (b"GET HTTP://localhost/v1/models?a=b HTTP/1.1\r\nHost: evil.example\r\n", b"200"),
        (b"GET http://localhost HTTP/1.1\r\n" + HOST, b"200"),
        (b"GET http://evil.example/healthz HTTP/1.1\r\n" + HOST, b"403"),
        (b"GET http:///healthz HTTP/1.1\r\n" + HOST, b"403"),
        (b"GET /healthz HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n" + HOST, b"200"),
        (b"GET //evil.example/healthz HTTP/1.1\r\n" + HOST, b"404"),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST, b"404"),
        (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST, b"404"),
    ],
)
def test_requests_of_proxies_and_probes(server: RunningServer, request_: bytes, expected: bytes) -> None:
    assert status(server, request_) == expected
