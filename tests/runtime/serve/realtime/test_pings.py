"""Pings keep a socket open behind a proxy. A client whose answers to them are late is not cut."""

import re
import socket
import time
from typing import Any

import pytest
from support.serve import http_server
from support.serve.http_server import running
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import OPENAI, Socket, pcm, talk, text_of
from uvicorn.config import Config

from voxport.runtime.serve.http.server import configuration
from voxport.runtime.serve.limits import Limits

INTERVAL_S, ANSWER_S, WATCH_S = 0.2, 0.15, 1.6
UPGRADE = (
    f"GET {OPENAI} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.fixture(autouse=True)
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two times of pings are short; a limit that is off stays off."""

    def quick(*arguments: Any) -> Config:
        config = configuration(*arguments)
        config.ws_ping_interval = INTERVAL_S
        config.ws_ping_timeout = config.ws_ping_timeout and INTERVAL_S
        return config

    monkeypatch.setattr(http_server, "configuration", quick)


def test_a_client_that_sends_faster_than_real_time_gets_its_text() -> None:
    """Its answers to pings wait behind 2 s of its own audio, which the server reads as it transcribes."""
    task = LoudToText()
    with running({"loud": task}, Limits(ahead_s=0.5, message_mib=0.01)) as server:
        task.before_feed = lambda: time.sleep(0.02)

        async def conversation(socket: Socket) -> list[dict[str, Any]]:
            for block in 12 * pcm(24000):
                await socket.send("input_audio_buffer.append", audio=text_of(block))
            await socket.send("input_audio_buffer.commit")
            return await socket.until("conversation.item.input_audio_transcription.completed")

        started = time.monotonic()
        text = talk(server, conversation, OPENAI)[-1]["transcript"]
        assert len(text.split()) == 36 and time.monotonic() - started > 5 * INTERVAL_S


def test_pings_keep_their_interval_when_their_answers_are_late() -> None:
    """uvicorn's pings come sooner by the time that the last answer took, which may become all of it."""
    with (
        running({"loud": LoudToText()}) as server,
        socket.create_connection(("127.0.0.1", server.port)) as client,
    ):
        client.sendall(UPGRADE.encode())
        client.settimeout(INTERVAL_S / 10)
        count, end = 0, time.monotonic() + WATCH_S
        while time.monotonic() < end:
            try:
                pings = re.findall(b"\x89\x04(.{4})", client.recv(65_536), re.DOTALL)
            except TimeoutError:
                continue
            if pings:
                count += len(pings)
                time.sleep(ANSWER_S)
                client.sendall(b"\x8a\x84" + bytes(4) + pings[-1])  # the mask changes nothing
        assert WATCH_S / INTERVAL_S / 2 <= count <= WATCH_S / INTERVAL_S
