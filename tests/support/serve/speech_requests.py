"""Requests for speech of a `ToneSpeech` that is served as `tone`."""

import httpx2
from support.serve.http_server import RunningServer

TEXT = "Hello there."


def speech_body(**fields) -> dict:
    return {"model": "tone", "voice": "anna", "input": TEXT, "response_format": "pcm", **fields}


def post_speech(server: RunningServer, content: bytes | dict, **options) -> httpx2.Response:
    body = {"json": content} if isinstance(content, dict) else {"content": content}
    return httpx2.post(f"{server.url}/v1/audio/speech", **body, **options)
