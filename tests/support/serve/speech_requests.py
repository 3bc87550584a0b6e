"""Requests for speech, most of them of a `ToneSpeech` that is served as `tone`."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2
from support.serve.http_server import RunningServer, wait_until

from voxport.runtime.serve.speech.worker import SpeechWorker

TEXT = "Hello there."


def speech_body(**fields: object) -> dict[str, Any]:
    return {"model": "tone", "voice": "anna", "input": TEXT, "response_format": "pcm", **fields}


def speech_request(text: str, *headers: str, **fields: str) -> bytes:
    """The bytes of a whole request."""
    body = json.dumps({"model": "tone", "input": text, "response_format": "pcm", **fields}).encode()
    lines = ("POST /v1/audio/speech HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


@contextmanager
def asking(server: RunningServer, text: str = "a" * 40, **fields: str) -> Iterator[socket.socket]:
    """A request whose client closes the connection at the end of the block."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(speech_request(text, **fields))
        yield connection


def post_speech(
    server: RunningServer, content: bytes | Iterator[bytes] | dict[str, Any], **options: Any
) -> httpx2.Response:
    body: dict[str, Any] = {"json": content} if isinstance(content, dict) else {"content": content}
    return httpx2.post(f"{server.url}/v1/audio/speech", **body, **options)


def post_in_order(
    server: RunningServer, *bodies: dict[str, Any], **options: Any
) -> list[Future[httpx2.Response]]:
    """Each is sent when the one before runs or waits."""
    worker, answers = server.models.speech_workers["tone"], list[Future[httpx2.Response]]()
    threads = ThreadPoolExecutor(len(bodies))
    for body in bodies:
        before = len(worker._waiting) + len(worker._running)
        answers.append(threads.submit(post_speech, server, body, **options))
        wait_until(partial(_is_more, worker, before))
    return answers


def _is_more(worker: SpeechWorker, before: int) -> bool:
    return len(worker._waiting) + len(worker._running) > before
