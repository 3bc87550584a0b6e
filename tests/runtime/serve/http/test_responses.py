"""Responses that are streamed, and those that every fault gets."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from support.serve.http_server import running, wait_until
from support.serve.tone_speech import ToneSpeech

from voxport.runtime.serve.http.responses import StreamedResponse

PIECES = 100


@pytest.mark.parametrize("ticks", range(9))
def test_a_response_ends_when_the_client_leaves_at_any_point_of_a_send(ticks: int) -> None:
    """`ticks`: turns of the event loop between the send of a piece and the news that the client left."""
    disconnected, sent, cancelled_at = asyncio.Event(), 0, []

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(PIECES):
            await asyncio.sleep(0)
            yield b"x"

    async def receive() -> dict[str, Any]:
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 5:
            leave_after(ticks)

    def leave_after(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(leave_after, turns - 1)
        else:
            disconnected.set()

    response = StreamedResponse(pieces(), "audio/pcm", lambda: cancelled_at.append(sent))
    asyncio.run(response({"type": "http"}, receive, send))
    assert cancelled_at[0] < PIECES / 2


def test_a_fault_of_the_server_is_answered_in_the_envelope_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = ToneSpeech()
    vars(task)["voices"] = lambda: dict[str, int]()["missing"]
    with running({"tone": task}) as server, caplog.at_level(logging.ERROR):
        response = httpx2.get(f"{server.url}/v1/audio/voices")
    assert response.status_code == 500 and response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"].startswith("req_")
    assert len([each for each in caplog.records if each.exc_info]) == 1


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/transcriptions"])
def test_a_client_that_leaves_before_its_body_is_no_fault_of_the_server(
    caplog: pytest.LogCaptureFixture, path: str
) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n"
    head += "content-type: multipart/form-data; boundary=x\r\n\r\n--x"
    with running({"tone": ToneSpeech()}) as server, caplog.at_level(logging.ERROR):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode())
        wait_until(lambda: server.metric("requests_total", route=path, code="499"))
    assert not [each for each in caplog.records if each.exc_info]
