"""Keys, hosts, origins and the numbers of requests and sockets."""

import json
import socket
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient
from support.serve.http_server import running, wait_until
from support.serve.loud_to_text import LoudToText
from support.serve.speech_requests import post_in_order, post_speech, speech_body
from support.serve.tone_speech import ToneSpeech
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.http.access import Keys, read_keys
from voxport.runtime.serve.http.app import build_app
from voxport.runtime.serve.http.server import EXTRA_CONNECTIONS
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models

KEY, OTHER = "k" * 20, "o" * 20
BODY = speech_body()
METHODS = ("GET", "POST", "OPTIONS")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    path = tmp_path / "keys"
    path.write_text(f"# the team\nanna:{KEY}\nbob:{OTHER}\n")
    return read_keys(path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_path_but_the_probes_needs_a_key(keys: Keys) -> None:
    with running({"tone": ToneSpeech()}, keys=keys) as server:
        for path in ("/v1/models", "/v1/audio/voices", "/metrics", "/v1/nothing"):
            response = httpx2.get(server.url + path)
            assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key", path
        assert httpx2.post(f"{server.url}/v1/audio/speech", json=BODY).status_code == 401
        assert httpx2.get(f"{server.url}/v1/models", headers=bearer(KEY[:-1])).status_code == 401
        for path in ("/healthz", "/readyz"):
            assert httpx2.get(server.url + path).status_code == 200
        for key in (KEY, OTHER):
            assert httpx2.get(f"{server.url}/v1/models", headers=bearer(key)).status_code == 200


def test_hosts_and_origins_that_are_foreign_are_refused() -> None:
    foreign = ("evil.example", "evil.example:80", "localhost.evil.example", "localhost..", "", "[", "[x]")
    with (
        running({"tone": ToneSpeech()}, origins=("https://page.example",)) as server,
        httpx2.Client() as client,
    ):
        cases = [({"host": host}, "host_not_allowed") for host in foreign]
        cases += [({"origin": origin}, "origin_not_allowed") for origin in ("http://evil.example", "null")]
        for headers, code in cases:
            answer = client.get(f"{server.url}/v1/models", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, code), headers
        for headers in ({"origin": "https://page.example"}, {"origin": server.url}, {"host": "page.example"}):
            assert client.get(f"{server.url}/v1/models", headers=headers).status_code == 200


ORIGINS = (
    "https://page.example/",
    "app://obsidian.md",
    "http://localhost:*",
    "chrome-extension://abc",
    "null",
)


def test_pages_that_are_listed_read_answers_and_no_others(keys: Keys) -> None:
    """Refusals too, and also if a key is needed: a browser asks without it first."""
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    listed = ("https://page.example", "app://obsidian.md", "http://localhost:5173", "chrome-extension://abc")
    others = ("http://evil.example", "https://page.example.evil", "app://other", "http://localhost.evil:80")
    with running({"tone": ToneSpeech()}, keys=keys, origins=ORIGINS) as server, httpx2.Client() as client:
        url = f"{server.url}/v1/audio/speech"
        for origin in (*listed, "null"):
            asked = client.request("OPTIONS", url, headers={"origin": origin, **asks})
            refused = client.post(url, json=BODY, headers={"origin": origin})
            spoken = client.post(url, json=BODY, headers={"origin": origin, **bearer(KEY)})
            assert [each.status_code for each in (asked, refused, spoken)] == [200, 401, 200]
            for each in (asked, refused, spoken):
                assert each.headers["access-control-allow-origin"] == origin
            assert asked.headers["access-control-allow-headers"] == "authorization"
            assert spoken.headers["access-control-expose-headers"] == "*"
        for origin in others:
            for method in ("OPTIONS", "POST"):
                answer = client.request(method, url, headers={"origin": origin, **asks, **bearer(KEY)})
                assert answer.status_code == 403 and f"--allow-origin {origin}" in answer.text
                assert not [name for name in answer.headers if name.startswith("access-control-")]
    with running({"tone": ToneSpeech()}) as server:
        answers = [httpx2.request(m, server.url, headers={"origin": server.url, **asks}) for m in METHODS]
    assert not [name for answer in answers for name in answer.headers if name.startswith("access-control-")]


def test_every_answer_has_an_id_of_its_own() -> None:
    paths = ("/", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/audio/voices", "/v1/nothing")
    with running({"tone": ToneSpeech()}) as server:
        answers = [httpx2.get(server.url + path) for path in paths]
        answers += [httpx2.post(f"{server.url}/v1/audio/speech", json=BODY) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [404] + [200] * 2
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == len(answers) and all(each.startswith("req_") for each in ids)


def test_a_key_has_a_number_of_sockets_at_a_time(keys: Keys) -> None:
    with running({"loud": LoudToText()}, Limits(jobs_per_key=1), keys) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/realtime?intent=transcription&model=loud"
        with connect(url, additional_headers=bearer(KEY)):
            with pytest.raises(InvalidStatus) as found, connect(url, additional_headers=bearer(KEY)):
                pass
            with connect(url, additional_headers=bearer(OTHER)) as other:
                assert json.loads(other.recv())["type"] == "session.created"
        refused = found.value.response
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert json.loads(refused.body)["error"]["code"] == "rate_limit_exceeded"
        wait_until(lambda: not server.metric("sockets"))
        with connect(url, additional_headers=bearer(KEY)) as again:
            assert json.loads(again.recv())["type"] == "session.created"


def test_a_key_has_a_number_of_requests_at_a_time(keys: Keys) -> None:
    task = ToneSpeech()
    task.gate.clear()
    with running({"tone": task}, Limits(jobs_per_key=1), keys) as server:
        (runs,) = post_in_order(server, BODY, headers=bearer(KEY))
        refused = post_speech(server, BODY, headers=bearer(KEY))
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"] == "1"
        assert httpx2.get(f"{server.url}/v1/models", headers=bearer(KEY)).status_code == 200
        task.gate.set()
        assert post_speech(server, BODY, headers=bearer(OTHER)).status_code == 200
        assert runs.result(10).status_code == 200
        assert post_speech(server, BODY, headers=bearer(KEY)).status_code == 200


def test_the_server_has_a_number_of_connections() -> None:
    task = ToneSpeech()
    task.gate.clear()
    with running({"tone": task}, Limits(connections=1)) as server:
        (runs,) = post_in_order(server, BODY)
        assert httpx2.get(f"{server.url}/v1/models").status_code == 503
        assert httpx2.get(f"{server.url}/readyz").status_code == 200
        task.gate.set()
        assert runs.result(10).status_code == 200


def test_connections_without_a_request_are_refused_beyond_their_number() -> None:
    with running({"tone": ToneSpeech()}, Limits(connections=1)) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(EXTRA_CONNECTIONS)]
        wait_until(lambda: len(server.connections) == EXTRA_CONNECTIONS)
        assert httpx2.get(f"{server.url}/v1/models").status_code == 503
        for each in idle:
            each.close()
        wait_until(lambda: not server.connections)
        assert httpx2.get(f"{server.url}/v1/models").status_code == 200


def test_a_server_takes_its_own_names() -> None:
    hosts = ("Voice.local", "host.docker.internal", "*.cluster.local", "voxport")
    client = TestClient(build_app(Models({}, Limits()), Keys(), hosts=hosts))
    own = ("voice.local", "VOICE.local:80", "host.docker.internal:1", "a.b.cluster.local", "voxport")
    for host in (*own, "localhost", "localhost.:8000", "voxport.", "127.0.0.1.", "[::1]:80"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200, host
    for host in (
        "other.local",
        "host.docker.internal.evil",
        "cluster.local",
        "voxport..",
        "hostxdocker.internal",
    ):
        answer = client.get("/healthz", headers={"host": host})
        assert answer.status_code == 403 and "--allow-host" in answer.json()["error"]["message"], host


def test_the_server_lists_its_paths() -> None:
    models = Models({"tone": ToneSpeech(), "loud": LoudToText()}, Limits())
    client = TestClient(build_app(models, Keys()), base_url="http://localhost")
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/voices", "/v1/models"} <= paths.keys()


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "keys.*expected"),
        ("anna", "line 1: expected"),
        ("anna:short", "line 1: expected"),
        (f":{KEY}", "line 1: expected"),
        (f"anna:{KEY}\nanna:{OTHER}", "line 2: expected"),
        (f"anna:{KEY}\nbob:{'ö' * 20}\n", "line 2: .*expected printable ASCII"),
        (f"anna:{KEY}\n\nbob:{'o' * 20}\x7f\n", "line 3: .*expected printable ASCII"),
    ],
)
def test_a_wrong_file_of_keys_is_named_with_its_line(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(UsageError, match=f"keys: .*{where}") as found:
        read_keys(path)
    assert found.value.field == "keys"


def test_blanks_around_names_and_keys_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"anna : {KEY} \n")
    assert read_keys(path).name(KEY) == "anna"


@pytest.mark.parametrize("path", ["/v1/other", "/v1/models"])
def test_a_socket_of_an_unknown_path_gets_the_envelope_of_errors(path: str) -> None:
    with running({"tone": ToneSpeech()}) as server:
        address = f"ws://127.0.0.1:{server.port}{path}"
        with pytest.raises(InvalidStatus) as found, connect(address):
            pass
    answer = found.value.response
    assert answer.status_code == 404 and answer.headers["x-request-id"].startswith("req_")
    assert json.loads(answer.body)["error"]["code"] == "not_found"


@pytest.mark.parametrize("pause_s", [0, 0.1])
def test_a_body_that_does_not_arrive_in_time_is_refused(pause_s: float) -> None:
    """Nothing of it, or a byte now and then. It may be sent again."""
    start = b"POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900\r\n\r\n"
    with (
        running({"tone": ToneSpeech()}, Limits(body_s=0.3)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=pause_s or 3) as connection,
    ):
        connection.sendall(start)
        answer = b""
        while not answer:
            if pause_s:
                connection.sendall(b"{")
            with suppress(TimeoutError):
                answer = connection.recv(1000)
        assert b" 408 " in answer and b"x-should-retry" not in answer


def test_every_get_has_a_head() -> None:
    paths = (
        "/",
        "/health",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/v1/models",
        "/v1/models/tone",
        "/v1/page",
    )
    with running({"tone": ToneSpeech()}) as server:
        wait_until(lambda: httpx2.head(f"{server.url}/readyz").status_code == 200)
        for path in paths:
            head, whole = httpx2.head(server.url + path), httpx2.get(server.url + path)
            assert (head.status_code, head.content, whole.status_code) == (200, b"", 200), path
            assert head.headers["content-type"] == whole.headers["content-type"] and whole.content
        for wrong in (httpx2.post(f"{server.url}/healthz"), httpx2.head(f"{server.url}/v1/audio/speech")):
            assert wrong.status_code == 405 and wrong.headers["allow"]


def test_an_unknown_path_is_named_and_superfluous_slashes_are_not_unknown() -> None:
    client = TestClient(build_app(Models({}, Limits()), Keys()), base_url="http://localhost")
    for path in ("/audio/speech", "/v1/v1/audio/speech", "/docs"):
        error = client.post(path).json()["error"]
        assert error["code"] == "not_found" and path in error["message"] and "/v1" in error["message"]
    for same in ("/v1/models/", "//v1/models", "/v1//models//"):
        assert client.get(f"http://localhost{same}", follow_redirects=False).status_code == 200


def test_a_key_has_several_headers(keys: Keys) -> None:
    client = TestClient(build_app(Models({}, Limits()), keys), base_url="http://localhost")
    for headers in ({"api-key": KEY}, {"X-API-Key": KEY}, {**bearer("none"), "api-key": KEY}):
        assert client.get("/v1/models", headers=headers).status_code == 200
    for headers in ({}, {"api-key": KEY[1:]}, {"authorization": f"Basic {KEY}"}):
        answer = client.get("/v1/models", headers=headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
