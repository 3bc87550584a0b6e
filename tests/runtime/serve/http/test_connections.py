"""Handshakes of TLS and of sockets, bodies that arrive slowly, and methods that a path does not have."""

import socket
import ssl
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from support.serve.certificates import certificate
from support.serve.http_server import running, wait_until
from support.serve.tone_speech import ToneSpeech

from voxport.runtime.serve.limits import Limits


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    chain, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    return context


def test_a_handshake_of_tls_that_does_not_end_is_closed(tls: ssl.SSLContext) -> None:
    with running({"tone": ToneSpeech()}, Limits(header_s=0.3), tls=tls) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=3) as silent:
            assert silent.recv(1) == b""
        assert httpx2.get(f"https://127.0.0.1:{server.port}/readyz", verify=False).status_code == 200


def test_connections_whose_handshake_of_tls_does_not_end_count_too(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxport.runtime.serve.http.protocol.EXTRA_CONNECTIONS", 1)
    with running({"tone": ToneSpeech()}, Limits(connections=1, header_s=60), tls=tls) as server:
        opened = [socket.create_connection(("127.0.0.1", server.port), timeout=0.5) for _ in range(3)]
        with suppress(ConnectionResetError):
            assert opened[-1].recv(1) == b""
        for each in opened[:2]:
            with pytest.raises(TimeoutError):
                each.recv(1)
            each.close()


def test_failed_handshakes_of_tls_do_not_count_for_long(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxport.runtime.serve.http.protocol.EXTRA_CONNECTIONS", 1)
    with running({"tone": ToneSpeech()}, Limits(connections=1, header_s=0.3), tls=tls) as server:
        for _ in range(3):
            socket.create_connection(("127.0.0.1", server.port)).close()
        wait_until(lambda: answers(f"https://127.0.0.1:{server.port}/readyz"))


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, verify=False).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/audio/transcriptions/realtime"])
def test_a_request_of_a_path_of_sockets_is_refused(path: str) -> None:
    with running({"tone": ToneSpeech()}) as server:
        answer = httpx2.get(f"{server.url}{path}")
    assert answer.status_code == 426 and answer.json()["error"]["code"] == "upgrade_required"


@pytest.mark.parametrize(
    "headers",
    [{"sec-websocket-version": "12", "sec-websocket-key": "a" * 22 + "=="}, {}, {"host": "evil.example"}],
)
def test_a_wrong_handshake_of_a_socket_gets_the_envelope_of_errors(headers: dict[str, str]) -> None:
    with running({"tone": ToneSpeech()}) as server:
        sent = {"connection": "upgrade", "upgrade": "websocket", **headers}
        answer = httpx2.get(f"{server.url}/v1/realtime", headers=sent)
    assert 400 <= answer.status_code < 500 and answer.json()["error"]["code"] == "invalid_handshake"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-should-retry"] == "false"


def test_probes_have_no_body_where_only_the_head_is_asked_for() -> None:
    with running({"tone": ToneSpeech()}) as server:
        wait_until(lambda: httpx2.head(f"{server.url}/readyz").status_code == 200)
        assert httpx2.head(f"{server.url}/healthz").content == b""
        assert httpx2.post(f"{server.url}/healthz").json()["error"]["code"] == "method_not_allowed"


def test_a_body_that_arrives_byte_by_byte_is_refused() -> None:
    """Although each byte arrives in time. It may be sent again."""
    start = b"POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900\r\n\r\n"
    with (
        running({"tone": ToneSpeech()}, Limits(header_s=0.5)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=0.1) as connection,
    ):
        connection.sendall(start)
        answer, sent = b"", 0
        while not answer and sent < 100:
            connection.sendall(b"{")
            sent += 1
            with suppress(TimeoutError):
                answer = connection.recv(1000)
    assert b" 408 " in answer and sent > 3 and b"x-should-retry" not in answer
