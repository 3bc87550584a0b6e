"""`docs/nginx.conf` in front of two servers."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.paths import ROOT
from support.serve.http_server import RunningServer, free_port, running, wait_until
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import COMPLETED, OPENAI, Socket, talk
from support.serve.tone_speech import FRAME, ToneSpeech, tone

from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.voices.store import VoiceStore

CONFIG = ROOT / "docs" / "nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
TEXT = "Hello there."
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@dataclass
class Proxied:
    port: int
    servers: list[RunningServer]
    tasks: list[ToneSpeech]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def speak(self, text: str = TEXT, **options: Any) -> httpx2.Response:
        body = {"model": "tone", "input": text, "response_format": "pcm"}
        return httpx2.post(f"{self.url}/v1/audio/speech", json=body, **options)


@contextmanager
def proxied(folder: Path, pass_s: float = 0.0, is_first_down: bool = False) -> Iterator[Proxied]:
    """Two servers with a slot each, and nginx. The first may be a port where nothing listens."""
    tasks = [ToneSpeech(pass_s), ToneSpeech(pass_s)]
    with (
        running({"tone": tasks[0], "loud": LoudToText()}, slots=1, voices=store(folder / "1")) as first,
        running({"tone": tasks[1], "loud": LoudToText()}, slots=1, voices=store(folder / "2")) as second,
    ):
        port = free_port()
        ports = {8001: free_port() if is_first_down else first.port, 8002: second.port, 8080: port}
        process = subprocess.Popen([str(NGINX), "-p", folder, "-c", main_config(folder, ports)])
        try:
            wait_until(lambda: is_open(port))
            yield Proxied(port, [first, second], tasks)
        finally:
            for task in tasks:
                task.gate.set()
            process.terminate()
            process.wait(10)


def store(folder: Path) -> VoiceStore:
    return VoiceStore(folder, 5)


def main_config(folder: Path, ports: dict[int, int]) -> Path:
    """A configuration around the one of the documentation, whose ports are exchanged."""
    content = CONFIG.read_text()
    for documented, used in ports.items():
        assert content.count(f"127.0.0.1:{documented}") == 1
        content = content.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{used}")
    (folder / "voxport.conf").write_text(content)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    path = folder / "nginx.conf"
    path.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors warn;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}include {folder}/voxport.conf;\n}}\n"
    )
    return path


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_requests_go_to_the_server_with_fewer_connections(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        for task in proxy.tasks:
            task.gate.clear()
        blocker = threading.Thread(target=proxy.speak)
        blocker.start()
        wait_until(lambda: any(task.running for task in proxy.tasks))
        (idle,) = [task for task in proxy.tasks if not task.running]
        idle.gate.set()
        assert [proxy.speak(timeout=5).status_code for _ in range(3)] == [200] * 3
        for task in proxy.tasks:
            task.gate.set()
        blocker.join(10)


def test_a_server_that_shuts_down_loses_no_request(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        proxy.servers[0].models.drain(0)
        answers = [proxy.speak() for _ in range(5)]
        assert [answer.content == pcm16(tone(TEXT)) for answer in answers] == [True] * 5
        assert proxy.servers[1].metric("frames_total", bundle="tone") == 5 * len(TEXT)
        assert proxy.servers[0].metric("requests_total", route="/v1/audio/speech", code="503") >= 1


def test_a_server_that_is_down_loses_no_request(tmp_path: Path) -> None:
    with proxied(tmp_path, is_first_down=True) as proxy:
        assert [proxy.speak().status_code for _ in range(5)] == [200] * 5


def close(gate: threading.Event, *_: object) -> None:
    gate.clear()


def test_samples_pass_as_they_are_made(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        for task in proxy.tasks:
            task.fault = partial(close, task.gate)  # the second pass waits
        body = {"model": "tone", "input": TEXT, "response_format": "pcm"}
        with httpx2.stream("POST", f"{proxy.url}/v1/audio/speech", json=body, timeout=5) as response:
            assert next(response.iter_raw()) == pcm16(tone(TEXT))[: 2 * FRAME]


def ended_requests(proxy: Proxied, route: str, least: int = 1) -> int:
    """How many requests have ended on both servers. Waits for `least`: they are counted after answers."""

    def count() -> int:
        rows = [next(iter(each.models.metrics.requests.collect())).samples for each in proxy.servers]
        found = [sample for row in rows for sample in row if sample.name.endswith("_total")]
        return sum(int(sample.value) for sample in found if sample.labels["route"] == route)

    wait_until(lambda: count() >= least)
    return count()


def test_an_answer_that_takes_longer_than_the_read_timeout_of_sockets_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """75 s become 1 s; the answer has its first byte after 2 s. A transcript is as late as a FLAC file."""
    documented = CONFIG.read_text()
    assert documented.count("proxy_read_timeout 75s") == 1
    (tmp_path / "shorter.conf").write_text(documented.replace("_timeout 75s", "_timeout 1s"))
    monkeypatch.setattr(f"{__name__}.CONFIG", tmp_path / "shorter.conf")
    with proxied(tmp_path, pass_s=0.1) as proxy:
        body = {"model": "tone", "input": "a" * 20, "response_format": "flac"}
        answer = httpx2.post(f"{proxy.url}/v1/audio/speech", json=body, timeout=20)
        assert answer.status_code == 200 and answer.content.startswith(b"fLaC")
        assert ended_requests(proxy, "/v1/audio/speech") == 1


def test_a_voice_is_sent_to_one_server_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers refuse it with 503. A text that is refused so is sent to both."""
    monkeypatch.setattr(ToneSpeech, "check_cloning", lambda self: None)
    with proxied(tmp_path) as proxy:
        for server in proxy.servers:
            server.models.drain(0)
        files = {"audio_sample": ("a.wav", bytes(100))}
        answer = httpx2.post(f"{proxy.url}/v1/audio/voices", data={"name": "Anna"}, files=files)
        assert answer.status_code == 503 and ended_requests(proxy, "/v1/audio/voices") == 1
        assert proxy.speak().status_code == 503 and ended_requests(proxy, "/v1/audio/speech", 2) == 2
        assert ended_requests(proxy, "/v1/audio/voices") == 1


def test_a_socket_passes(tmp_path: Path) -> None:
    async def conversation(socket: Socket) -> str:
        await socket.say()
        return str((await socket.until(COMPLETED))[-1]["transcript"])

    with proxied(tmp_path) as proxy:
        assert talk(proxy, conversation, OPENAI) == "one two three"


def test_uploads_and_errors_are_those_of_the_server(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        url = f"{proxy.url}/v1/audio/transcriptions"
        answer = httpx2.post(url, data={"model": "loud"}, files={"file": bytes(2**21)})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_audio"
        assert httpx2.get(f"{proxy.url}/readyz").status_code == 200
        assert httpx2.get(f"{proxy.url}/metrics").status_code == 404
