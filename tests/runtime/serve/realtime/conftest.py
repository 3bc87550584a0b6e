"""A server with a task for live sound, and one for recordings."""

from collections.abc import Iterator

import pytest
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"loud": LoudToText(), "recordings": LoudToText(is_live=False)}) as started:
        yield started
