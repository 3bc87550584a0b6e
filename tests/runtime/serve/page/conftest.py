"""A browser, servers, and the loaded page."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.serve.browser import WATCH, chromium
from support.serve.http_server import RunningServer
from support.serve.page import DESKTOP, KEY, SECOND, SOUNDS, Watched, opened, page_server

from voxport.runtime.serve.http.access import Keys


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three loud sounds."""
    samples = np.zeros(4 * SECOND)
    for start, end in SOUNDS:
        times = np.arange(round(start * SECOND), round(end * SECOND))
        samples[times] = 0.4 * np.sin(2 * np.pi * 300 * times / SECOND)
    path = tmp_path_factory.mktemp("recording") / "sounds.wav"
    soundfile.write(path, samples, SECOND, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def browser(recording: Path) -> Iterator[Any]:
    with chromium(recording) as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with page_server() as server:
        yield server


@pytest.fixture(scope="module")
def server_with_keys() -> Iterator[RunningServer]:
    with page_server(Keys({"me": sha256(KEY.encode()).digest()})) as server:
        yield server


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.add_init_script(WATCH)
    yield Watched(page)
    context.close()


@pytest.fixture
def page(watched: Watched, server: RunningServer) -> Iterator[Any]:
    """The loaded page. It stays on its host and logs nothing."""
    opened(watched.page, server.url)
    yield watched.page
    assert watched.messages == []
    assert {host for host in watched.hosts if host} == {f"127.0.0.1:{server.port}"}
