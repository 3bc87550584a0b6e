"""The log has one line for each request and each socket, without key, text or query."""

import logging
import socket
from hashlib import sha256

import httpx2
import pytest
from support.serve.http_server import running, wait_until
from support.serve.tone_speech import ToneSpeech
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from voxport.runtime.serve.http.access import Keys

KEY, SECRET = "k" * 20, "a-secret-of-the-client"
KEYS = Keys({"anna": sha256(KEY.encode()).digest()})
REFUSED = [  # path, headers, status
    (f"/v1/realtime?api_key={SECRET}", {}, 401),
    ("/v1/realtime", {"authorization": f"Bearer {SECRET}"}, 401),
    ("/v1/realtime", {"sec-websocket-protocol": f"openai-insecure-api-key.{SECRET}"}, 401),
    ("/v1/realtime", {"origin": f"http://{SECRET}.example"}, 403),
    (f"/v1/{SECRET}", {"authorization": f"Bearer {KEY}"}, 404),
    (f"/v1/realtime?model={SECRET}", {"authorization": f"Bearer {KEY}"}, 404),
]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the server, not of its clients."""
    return [each.getMessage() for each in caplog.records if each.name.startswith(("voxport", "uvicorn"))]


@pytest.mark.parametrize(("path", "headers", "status"), REFUSED)
def test_a_refused_socket_is_one_line_without_what_the_client_sent(
    caplog: pytest.LogCaptureFixture, path: str, headers: dict[str, str], status: int
) -> None:
    with running({"tone": ToneSpeech()}, keys=KEYS) as server:
        caplog.set_level(logging.INFO)
        caplog.clear()  # lines of the start
        with pytest.raises(InvalidStatus) as caught:
            connect(f"ws://127.0.0.1:{server.port}{path}", additional_headers=headers)
        assert caught.value.response.status_code == status
        wait_until(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert f" websocket {'/v1/realtime' if '?model' in path else 'other'} {status} " in line
    assert SECRET not in line and KEY not in line


def test_a_request_is_one_line_without_its_query_and_text(caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "tone", "input": f"Say {SECRET}.", "response_format": "pcm"}
    with running({"tone": ToneSpeech()}, keys=KEYS) as server:
        caplog.set_level(logging.INFO)
        caplog.clear()  # lines of the start
        for key, status in ((KEY, 200), (SECRET, 401)):
            response = httpx2.post(
                f"{server.url}/v1/audio/speech?key={SECRET}",
                json=body,
                headers={"authorization": f"Bearer {key}"},
            )
            assert response.status_code == status
        wait_until(lambda: len(lines(caplog)) == 3)  # one of them names the field of the address
    assert all(text not in line for line in lines(caplog) for text in (SECRET, KEY))


def test_what_is_no_request_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with running({"tone": ToneSpeech()}, keys=KEYS) as server:
        caplog.set_level(logging.INFO)
        caplog.clear()  # lines of the start
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"{SECRET}\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    assert lines(caplog) == []


def test_an_application_of_any_server_keeps_texts_out_of_the_log() -> None:
    logging.getLogger("voxport.runtime.text").setLevel(logging.DEBUG)
    with running({"tone": ToneSpeech()}):
        assert not logging.getLogger("voxport.runtime.text.cleanup").isEnabledFor(logging.DEBUG)
