"""Serve bundles over HTTP and WebSockets, for clients of the OpenAI audio API.

Without --bundle, the embedded models are served.
"""

import argparse
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import UsageError
from voxport.bundle.files import link_name
from voxport.cli.arguments import (
    BUNDLE_HELP,
    add_engine_arguments,
    embedded_bundle,
    engine_options,
    folder,
    integer,
)
from voxport.runtime.serve.address import (
    LOOPBACK,
    Listener,
    bind,
    check_hosts,
    check_origins,
    is_loopback,
    parse_networks,
    parse_wyoming,
    tls_context,
    url_host,
)
from voxport.runtime.speech_request import DEFAULT_SLOTS

if TYPE_CHECKING:
    from voxport.runtime.serve.aliases import Aliases
    from voxport.runtime.serve.http.access import Keys
    from voxport.runtime.serve.limits import Limits
    from voxport.runtime.serve.voices.store import VoiceStore
    from voxport.runtime.serve.wyoming.server import WyomingServer

REPEATED = {  # options that may be repeated
    "--allow-origin": (
        "URL",
        "web page that may use the server, such as https://example.org, app://NAME, http://localhost:* or "
        "null; also allows the host name of an https or http URL",
    ),
    "--allow-host": (
        "NAME",
        "name by which clients reach the server, such as host.docker.internal or *.example.org (addresses, "
        "localhost and --host are always allowed)",
    ),
    "--wyoming-allow": (
        "NETWORK",
        "network or address of machines that may use --wyoming, such as 192.168.1.0/24 (default: only this "
        "machine)",
    ),
    "--alias": ("NAME=BUNDLE", "further name of a bundle (default: the names of OpenAI and Mistral)"),
    "--voice-alias": ("NAME=VOICE", "further name of a voice (default: the names of OpenAI and Mistral)"),
}
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle",
        type=folder,
        action="append",
        metavar="DIR",
        help=f"{BUNDLE_HELP}; repeat it to serve several. Requests name a bundle by the folder's name "
        "(default: the embedded models; a clone exports them on first use, for minutes)",
    )
    parser.add_argument("--host", default=LOOPBACK, help=f"address to listen on (default: {LOOPBACK})")
    parser.add_argument(
        "--port", type=integer(1, 65535), default=8000, help="port to listen on (default: 8000)"
    )
    _add_access(parser)
    _add_features(parser)
    parser.add_argument(
        "--no-check", action="store_true", help="skip the comparison of the bundles' files with their hashes"
    )
    add_engine_arguments(parser)
    _add_limits(parser)


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="file with a name:key per line; every request then needs a key, except those for the files of "
        "the page, /healthz and /readyz (default: no key is needed)",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of the server, in PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of the certificate, in PEM")
    parser.add_argument(
        "--wyoming",
        metavar="URI",
        help="address for the Wyoming protocol of Home Assistant, as in tcp://127.0.0.1:10200; it has no "
        "key, so other machines need --wyoming-allow (default: not served)",
    )
    parser.add_argument(
        "--wyoming-announce",
        action="store_true",
        help="announce --wyoming in the local network, so that Home Assistant finds it (multicast DNS)",
    )


def _add_features(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--voices",
        type=Path,
        metavar="DIR",
        help="folder for voices made from uploads; created if missing (default: uploads are refused)",
    )
    parser.add_argument(
        "--slots",
        type=integer(1, 64),
        default=DEFAULT_SLOTS,
        metavar="N",
        help="texts that a bundle speaks at a time, at most as many as its engine batches: 8 with ONNX, 1 "
        f"with other engines (default: {DEFAULT_SLOTS})",
    )
    for option, (metavar, text) in REPEATED.items():
        kind = _pair if "=" in metavar else str
        text = f"{text}; repeat it for several"
        parser.add_argument(option, type=kind, action="append", default=[], metavar=metavar, help=text)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse fields of requests that have no effect (default: ignore them, and name them in the "
        "answer)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    from voxport.runtime.serve.limits import LIMITS

    limits = parser.add_argument_group("limits")
    for name, limit in LIMITS.items():
        kind = integer(1) if limit.annotation is int else _positive
        text = f"{limit.description} (default: {limit.default:g})"
        limits.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=limit.default, metavar="N", help=text
        )


def _pair(text: str) -> tuple[str, str]:
    name, _, target = (part.strip() for part in text.partition("="))
    if not (name and target):
        raise argparse.ArgumentTypeError(f"expected two names as in tts-1=TTS, found {text!r}")
    return name, target


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < 1e9:
            return value
    raise argparse.ArgumentTypeError(f"expected a positive number below 1e9, found {text!r}")


@dataclass(frozen=True)
class ServerSetup:
    """Checked and opened options. `wyoming` lacks its models."""

    listener: Listener
    keys: "Keys"
    limits: "Limits"
    voices: "VoiceStore | None"
    wyoming: "partial[WyomingServer] | None"
    aliases: "Aliases"


def check(arguments: argparse.Namespace) -> ServerSetup:
    """Checks every option but the bundles, whose opening takes longest. Raises UsageError.

    The listener is to be closed.
    """
    from voxport.runtime.serve.aliases import Aliases
    from voxport.runtime.serve.http.access import Keys, read_keys
    from voxport.runtime.serve.limits import LIMITS, Limits
    from voxport.runtime.serve.voices.store import VoiceStore

    if not is_loopback(arguments.host) and not arguments.keys:
        raise UsageError(f"host {arguments.host}: others can reach it, so it needs --keys FILE", field="host")
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        raise UsageError("tls_cert: needs --tls-key, and --tls-key needs it", field="tls_cert")
    check_origins(arguments.allow_origin)
    check_hosts(arguments.allow_host)
    wyoming = _wyoming(arguments)
    keys = read_keys(arguments.keys) if arguments.keys else Keys()
    limits = Limits(**{name: getattr(arguments, name) for name in LIMITS})
    tls = tls_context(arguments.tls_cert, arguments.tls_key) if arguments.tls_cert else None
    aliases = Aliases(_unique(arguments.alias, "alias"), _unique(arguments.voice_alias, "voice_alias"))
    if arguments.bundle:
        aliases.check(map(link_name, arguments.bundle))
    voices = VoiceStore(arguments.voices, limits.stored_voices) if arguments.voices else None
    return ServerSetup(bind(arguments.host, arguments.port, tls=tls), keys, limits, voices, wyoming, aliases)


def _unique(pairs: list[tuple[str, str]], field: str) -> dict[str, str]:
    """Raises UsageError on a name with two meanings."""
    found: dict[str, str] = {}
    for name, meant in pairs:
        if found.setdefault(name, meant) != meant:
            raise UsageError(f"{field}: {name}: means {found[name]} and {meant}", field=field)
    return found


def run(arguments: argparse.Namespace) -> int:
    setup = check(arguments)
    with setup.listener:
        if not arguments.bundle:
            from voxport.runtime.speech_to_text import SpeechToText
            from voxport.runtime.text_to_speech import TextToSpeech

            arguments.bundle = [embedded_bundle(TextToSpeech), embedded_bundle(SpeechToText)]
        return serve_bundles(arguments, setup)


def serve_bundles(arguments: argparse.Namespace, setup: ServerSetup) -> int:
    """Opens the bundles and serves them until a signal."""
    from voxport.runtime.serve.http.app import build_app
    from voxport.runtime.serve.http.server import serve
    from voxport.runtime.serve.models import Models, open_bundles

    tasks = open_bundles(arguments.bundle, engine_options(arguments), not arguments.no_check)
    models = Models(tasks, setup.limits, arguments.slots, setup.voices, setup.aliases, arguments.strict)
    models.start()
    scheme = "https" if setup.listener.tls else "http"
    address = f"{scheme}://{url_host(arguments.host)}:{arguments.port}"
    log.info("serving %s at %s", ", ".join(models.names), address)
    app = build_app(models, setup.keys, arguments.allow_origin, (arguments.host, *arguments.allow_host))
    background = setup.wyoming(models) if setup.wyoming else None
    serve(app, models, setup.listener, background)
    return 0


def _wyoming(arguments: argparse.Namespace) -> "partial[WyomingServer] | None":
    """The server for the address, which is free. Raises UsageError."""
    uri, networks = arguments.wyoming, parse_networks(arguments.wyoming_allow)
    if not uri:
        if networks or arguments.wyoming_announce:
            raise UsageError("wyoming: options of it need an address, tcp://HOST:PORT", field="wyoming")
        return None
    host, port = parse_wyoming(uri)
    if not (networks or is_loopback(host)):
        raise UsageError(
            f"wyoming {uri!r}: the Wyoming protocol has no key, so other machines need --wyoming-allow "
            "NETWORK, as in 192.168.1.0/24",
            field="wyoming",
        )
    if arguments.wyoming_announce and is_loopback(host):
        reason = f"no other machine reaches {host}; with it, give --wyoming tcp://0.0.0.0:{port}"
        raise UsageError(f"wyoming_announce: {reason}", field="wyoming_announce")
    try:
        from voxport.runtime.serve.wyoming.server import WyomingServer
    except ModuleNotFoundError as error:
        raise UsageError(
            f"wyoming: the package {error.name} is not installed; run pip install 'voxport[wyoming]'",
            field="wyoming",
        ) from None
    with bind(host, port, "wyoming"):
        announces = arguments.wyoming_announce
        return partial(WyomingServer, host=host, port=port, networks=networks, announces=announces)
