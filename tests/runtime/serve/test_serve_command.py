"""`voxport serve` as a process: without a bundle, with TLS and keys, with signals, with a damaged bundle."""

import shutil
import signal
import ssl
from pathlib import Path

import httpx2
import pytest
from support.serve.certificates import certificate
from support.serve.http_server import wait_until
from support.serve.server_process import ServerProcess, serving

KEY = "k" * 20
HEADERS = {"authorization": f"Bearer {KEY}"}
FRAME_BYTES = 2 * 1920
LONG = {"model": "voxtral-tts-tiny", "input": "One two three. " * 120, "response_format": "pcm"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "log"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"anna:{KEY}\n")
    return path


@pytest.fixture(scope="module")
def exported(trained_bundles: dict[str, Path], log: Path) -> Path:
    """The bundle of Voxtral-TTS that `serve` uses without --bundle."""
    with serving(log) as (process, client):
        assert "exporting" not in process.output
        names = [model["id"] for model in client.get("/v1/models").json()["data"]]
        assert names[:2] == ["voxtral-tts-tiny", "voxtral-realtime-tiny"]  # aliases follow
        speech = client.post("/v1/audio/speech", json={**LONG, "max_frames": 3})
        assert len(speech.content) == 3 * FRAME_BYTES
    return trained_bundles["voxtral_tts"]


def test_all_hosts_are_served_with_tls_and_keys(exported: Path, tmp_path: Path, keys: Path) -> None:
    own, secret = certificate(tmp_path)
    options = ("--host", "0.0.0.0", "--keys", keys, "--tls-cert", own, "--tls-key", secret)
    context = ssl.create_default_context(cafile=str(own))
    with serving(tmp_path / "log", *options, scheme="https", verify=context) as (process, client):
        assert "https://0.0.0.0" in process.output
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers=HEADERS).status_code == 200
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"http://127.0.0.1:{process.port}/healthz")
        with pytest.raises(httpx2.TransportError, match=r"(?i)certificate"):
            httpx2.get(f"{process.url}/healthz")


def test_sigterm_lets_a_stream_end_and_refuses_others(exported: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log", "-v", "--bundle", exported) as (process, client):
        private = {**LONG, "input": "Dr. Secret, 12 km", "max_frames": 1}  # the clean-up changes it
        assert client.post("/v1/audio/speech", json=private).status_code == 200
        whole = client.post("/v1/audio/speech", json=LONG).content
        with client.stream("POST", "/v1/audio/speech", json=LONG) as response:
            pieces = response.iter_raw()
            content = next(pieces)
            process.process.terminate()
            wait_until(lambda: client.get("/readyz").status_code == 503)
            refused = client.post("/v1/audio/speech", json=LONG)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "server_shutting_down"
            content += b"".join(pieces)
        assert content == whole and len(whole) > 40 * FRAME_BYTES
        assert process.process.wait(20) == 0
        assert "Traceback" not in process.output and "Secret" not in process.output


def test_a_second_sigterm_ends_a_stream_at_once(exported: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--bundle", exported) as (process, client):
        with client.stream("POST", "/v1/audio/speech", json=LONG) as response:
            next(response.iter_raw())
            process.process.terminate()
            wait_until(lambda: client.get("/readyz").status_code == 503)
            process.process.terminate()
            assert process.process.wait(2) == -signal.SIGTERM
        assert process.output.count("a second signal") == 1 and "Traceback" not in process.output


def test_a_damaged_bundle_is_refused_before_the_port_is_open(exported: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(exported, tmp_path / "damaged"))
    with (damaged / "backbone.onnx.data").open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    process = ServerProcess(tmp_path / "log", "--bundle", damaged)
    assert process.process.wait(60) == 5
    assert "backbone.onnx.data" in process.output and "Traceback" not in process.output
    assert "serving" not in process.output


def test_another_host_needs_keys(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path / "log", "--host", "0.0.0.0", "--bundle", tmp_path)
    assert process.process.wait(60) == 2
    assert "--host 0.0.0.0: others can reach it, so it needs --keys FILE" in process.output
