"""Options of `voxport serve` that are wrong. Each is found before a bundle is opened."""

import argparse
import re
import socket
import ssl
from pathlib import Path

import pytest
from support.paths import ROOT
from support.serve.certificates import certificate

from voxport.bundle.errors import UsageError
from voxport.cli.arguments import Parser
from voxport.cli.commands import serve


def parse(*options: object) -> argparse.Namespace:
    parser = Parser()
    serve.add_arguments(parser)
    return parser.parse_args(["--bundle", "missing", *map(str, options)])


def refused(*options: object) -> UsageError:
    with pytest.raises(UsageError) as found:
        serve.check(parse(*options))
    return found.value


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_in_use_is_found_first(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = refused("--host", host, "--port", port)
        assert error.field == "port" and str(port) in str(error) and "in use" in str(error)
        error = refused("--port", 1, "--wyoming", f"tcp://{host}:{port}")
        assert error.field == "wyoming" and "in use" in str(error)


def test_a_host_that_is_not_of_this_machine_is_found_first(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"anna:{'k' * 20}\n")
    for host in ("192.0.2.1", "a..b"):
        assert refused("--host", host, "--keys", keys).field == "port"


def test_files_of_tls_are_checked_first(tmp_path: Path) -> None:
    own, key = certificate(tmp_path)
    locked, locked_key = certificate(tmp_path, "locked", "secret")
    text = tmp_path / "text"
    text.write_text("no PEM")
    for pair in (
        (tmp_path / "missing", key),
        (text, key),
        (own, text),
        (own, locked_key),
        (locked, locked_key),
    ):
        error = refused("--tls-cert", pair[0], "--tls-key", pair[1])
        assert error.field == "tls_cert" and all(str(path) in str(error) for path in pair)


@pytest.mark.parametrize(
    "origin",
    [
        "foo",
        "example.org",
        "https://",
        "https://a.example/page",
        "https://a:b@c.d",
        "https://a.example b",
        "//a.example",
        "http://[",
        "https://a.example:99999",
        "https://a.example?b",
        "",
    ],
)
def test_an_origin_is_the_url_of_a_web_page(origin: str) -> None:
    error = refused("--port", 1, "--allow-origin", "https://b.example", "--allow-origin", origin)
    assert error.field == "allow_origin" and repr(origin) in str(error)


@pytest.mark.parametrize("host", ["http://a.example", "a.example:80", "a/b", "", "[::1]"])
def test_a_host_is_a_name(host: str) -> None:
    error = refused("--port", 1, "--allow-host", host)
    assert error.field == "allow_host" and repr(host) in str(error)


def test_the_wyoming_protocol_needs_networks_beyond_this_machine() -> None:
    for host in ("0.0.0.0", "192.168.1.2", "example.org", "[::]"):
        assert "--wyoming-allow NETWORK" in str(refused("--port", 1, "--wyoming", f"tcp://{host}:10200"))
    for network in ("a", "", "192.168.1.0/33", "192.168.1.*"):
        error = refused("--wyoming", "tcp://0.0.0.0:1", "--wyoming-allow", network)
        assert error.field == "wyoming_allow" and repr(network) in str(error)
    for options in (["--wyoming-allow", "10.0.0.0/8"], ["--wyoming-announce"]):
        assert refused("--port", 1, *options).field == "wyoming"


def test_other_files_and_addresses_are_checked_first(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("short")
    assert refused("--keys", tmp_path / "missing").field == "keys"
    assert refused("--keys", file).field == "keys"
    assert refused("--voices", file).field == "voices"
    assert refused("--wyoming", "http://127.0.0.1:80").field == "wyoming"
    assert "missing" in str(refused("--alias", "tts-1=other")) and refused("--alias", "a=b").field == "alias"
    for option in ("--alias", "--voice-alias"):
        assert "tts-1: means a and b" in str(refused(option, "tts-1=a", option, "tts-1=b"))
        with pytest.raises(UsageError, match="expected two names as in tts-1=TTS, found 'tts-1='"):
            parse(option, "tts-1=")


def test_what_was_checked_is_bound_and_listens_later(tmp_path: Path) -> None:
    own, key = certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pages = ("HTTPS://a.example/", "http://[::1]:80", "app://a", "null", "file://", "http://localhost:*", "*")
    origins = [f"--allow-origin={origin}" for origin in pages]
    hosts = ["--allow-host=voxport", "--allow-host=*.example.org"]
    ready = serve.check(parse("--port", port, "--tls-cert", own, "--tls-key", key, *origins, *hosts))
    with ready.listener:
        assert ready.listener.port == port and isinstance(ready.listener.tls, ssl.SSLContext)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    assert ready.listener.sockets[0].fileno() == -1


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "nan", "1e9"])
def test_a_number_of_a_limit_that_is_wrong_is_shown(value: str) -> None:
    with pytest.raises(UsageError, match="--queue-s: expected a positive number below 1e9, found '") as found:
        parse(f"--queue-s={value}")
    assert "_positive" not in str(found.value) and repr(value) in str(found.value)


def test_limits_whose_type_is_a_float_take_fractions() -> None:
    assert parse("--queue-s", "0.5").queue_s == 0.5
    with pytest.raises(UsageError, match="--waiting: expected an integer"):
        parse("--waiting", "0.5")


def test_the_document_has_a_row_for_every_limit() -> None:
    """With the default in the unit of the option."""
    document = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    section = document.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(--[a-z-]+)` \| ([\d,.]+) ", section, re.MULTILINE))
    parser = Parser()
    serve.add_arguments(parser)
    (limits,) = (group for group in parser._action_groups if group.title == "limits")
    defaults = {action.option_strings[0]: action.default for action in limits._group_actions}
    assert {name: float(value.replace(",", "")) for name, value in rows.items()} == defaults
