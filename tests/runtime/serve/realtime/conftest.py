"""A server with a task for live sound, and one for recordings."""

from collections.abc import Callable, Iterator

import pytest
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText

from voxport.runtime.serve.errors import overloaded


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"loud": LoudToText(), "recordings": LoudToText(is_live=False)}) as started:
        yield started


@pytest.fixture
def refuse_next(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunningServer], None]:
    """Lets a server refuse the next part of live audio, as if no stream were free."""

    def refuse(*_: object, **options: object) -> None:
        monkeypatch.undo()
        raise overloaded("no live stream is free")

    return lambda server: monkeypatch.setattr(
        server.models.transcription_workers["loud"], "submit_live", refuse
    )
