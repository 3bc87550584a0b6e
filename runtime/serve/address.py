"""Addresses that the server listens on, and of web pages that may use it."""

import errno
import os
import re
import socket
import ssl
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from voxport.bundle.errors import UsageError

LOOPBACK = "127.0.0.1"
Network = IPv4Network | IPv6Network
ORIGIN = re.compile(r"null|\*|file://|[a-z][a-z0-9+.-]*://[^/?#@\s]+/?", re.IGNORECASE)
HOST_NAME = re.compile(r"[\w.*-]+", re.ASCII)
SEND_S = 60.0  # in which a client receives nothing of what was sent
UNAVAILABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # this machine lacks one of the addresses of a name


@dataclass(frozen=True)
class Listener:
    """Sockets that are bound and refuse connections until a server listens. With `tls` it speaks TLS."""

    sockets: list[socket.socket]
    tls: ssl.SSLContext | None = None

    @property
    def port(self) -> int:
        port: int = self.sockets[0].getsockname()[1]
        return port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()


def bind(
    host: str, port: int, field: str = "port", tls: ssl.SSLContext | None = None, send_s: float = SEND_S
) -> Listener:
    """Binds all addresses of a host. A port of 0 is any free one. Raises UsageError with `field`.

    `send_s`: the kernel ends connections whose clients receive nothing for this time (Linux only).
    """
    listener, unavailable = Listener([], tls), None
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            try:
                listener.sockets.append(_bound(socket.socket(family, kind, protocol), address, send_s))
            except OSError as error:
                if error.errno not in UNAVAILABLE:
                    raise
                unavailable = error
        if not listener.sockets:
            raise unavailable or OSError("has no address")
    except (OSError, UnicodeError) as error:  # a name may be no name of a host
        listener.__exit__()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{field}: {port} of host {host}: {reason}", field=field) from None
    return listener


def _bound(found: socket.socket, address: Any, send_s: float) -> socket.socket:
    """Any: an address of the family of the socket."""
    if os.name == "posix":  # else the port of a server that has ended cannot be used for a minute
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if found.family == socket.AF_INET6:  # the addresses of IPv4 have a socket of their own
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if sys.platform == "linux":  # a connection has the options of its listener
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * send_s))
    try:
        found.bind(address)
    except OSError:
        found.close()
        raise
    return found


def tls_context(certificate: Path, private_key: Path) -> ssl.SSLContext:
    """Raises UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, private_key, password=lambda: "")  # else it asks the terminal
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            f"tls_cert: {certificate} and {private_key}: {error}; expected a certificate and its private key "
            "in PEM, without password",
            field="tls_cert",
        ) from None
    return context


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return host.lower().rstrip(".") == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def url_host(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def parse_wyoming(uri: str) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`. Raises UsageError."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or uri != f"tcp://{url_host(host)}:{port}":
        raise UsageError(f"wyoming {uri!r}: expected tcp://HOST:PORT", field="wyoming")
    return host, port


def parse_networks(texts: Iterable[str]) -> list[Network]:
    """Networks such as `192.168.1.0/24`, and single addresses. Raises UsageError."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            reason = "expected a network or an address, as in 192.168.1.0/24"
            raise UsageError(f"wyoming_allow {text!r}: {reason}", field="wyoming_allow") from None
    return found


def one_of(patterns: Iterable[str]) -> str:
    """A regular expression for each of `patterns`, in any case. A `*` is any text."""
    found = "|".join(re.escape(each).replace(r"\*", ".*") for each in patterns)
    return f"(?i:{found})" if found else "(?!)"


def check_origins(origins: Iterable[str]) -> None:
    """Raises UsageError on what is no origin of a web page, such as `https://example.org`.

    A `*` is any text, as in `http://localhost:*`. Pages without an origin have `null`.
    """
    for origin in origins:
        try:
            is_origin = urlsplit(origin.replace("*", "1")).port != 0 and ORIGIN.fullmatch(origin)
        except ValueError:
            is_origin = False
        if not is_origin:
            raise UsageError(
                f"allow_origin {origin!r}: expected the URL of a web page without a path, as in "
                "https://example.org, app://NAME, http://localhost:* or null",
                field="allow_origin",
            )


def check_hosts(names: Iterable[str]) -> None:
    """Raises UsageError on what is no name of a host, such as `voxport.local` or `*.example.org`."""
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise UsageError(
                f"allow_host {name!r}: expected a name without scheme and port, as in host.docker.internal",
                field="allow_host",
            )
