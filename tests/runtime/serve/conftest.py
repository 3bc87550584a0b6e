"""A server with a toy task of each kind, and an OpenAI client. Modules may define another `server`."""

from collections.abc import Iterator

import openai
import pytest
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText
from support.serve.tone_speech import ToneSpeech


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"tone": ToneSpeech(), "loud": LoudToText()}) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
