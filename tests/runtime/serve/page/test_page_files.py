"""The files of the page: headers, names, and nothing that is loaded from elsewhere."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from http.client import HTTPConnection
from importlib.resources import files

import pytest
import soundfile
from support.serve.http_server import RunningServer
from support.serve.page import page_server

from voxport.runtime.serve.http.access import Keys

FILES = [
    file.name for file in files("voxport.runtime.serve").joinpath("page").iterdir() if file.name[0] != "_"
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with page_server(Keys({"me": sha256(b"0123456789-abcdef").digest()})) as server:
        yield server


def test_every_file_is_served_without_a_key_and_with_a_policy(server: RunningServer) -> None:
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for path in ("", *(f"page/{name}" for name in FILES)):
        with urllib.request.urlopen(f"{server.url}/{path}") as response:
            headers, content = response.headers, response.read().decode()
        assert headers["content-type"].startswith(types[path.partition(".")[2] or "html"])
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        assert f"connect-src 'self' ws://127.0.0.1:{server.port} " in policy
        assert not re.findall(r"""(?:src|href|from|import\()\s*=?\s*["'](?!/page/)[^"']*["']""", content)
        assert not re.findall(r"\son\w+=|\sstyle=|<script>|<style", content) or path.endswith(".js")


@pytest.mark.parametrize(
    "path",
    [
        "page/x.js",
        "page/../app.py",
        "page/%2e%2e/app.py",
        "page/%2e%2e%2fapp.py",
        "page/__init__.py",
    ],
)
def test_no_other_file_is_served(server: RunningServer, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{server.url}/{path}")
    assert raised.value.code == 404


def test_what_the_page_offers_needs_a_key(server: RunningServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{server.url}/v1/page")
    assert raised.value.code == 401


def test_a_host_adds_no_source_to_the_policy(server: RunningServer) -> None:
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/", headers={"host": "localhost:80;script-src *"})
    policy = connection.getresponse().headers["content-security-policy"]
    assert policy is None or "*" not in policy
    connection.close()


def test_the_page_offers_recordings_that_can_be_read() -> None:
    page = files("voxport.runtime.serve").joinpath("page").joinpath("index.html").read_text()
    offered, other = re.findall(r'accept="([^"]*)"', page)
    containers = {".aif": "AIFF", ".oga": "OGG", ".opus": "OGG"}
    decoded = (".m4a", ".aac", "audio/*", "video/mp4", "video/webm")  # by browsers
    assert offered == other
    for end in set(offered.split(",")) - set(decoded):
        assert containers.get(end, end[1:].upper()) in soundfile.available_formats(), end
