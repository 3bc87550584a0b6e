"""Addresses that the server listens on."""

from urllib.parse import urlsplit

from bundle.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def parse_wyoming(uri: str) -> tuple[str, int]:
    """Host and port of `tcp://HOST:PORT`. Raises UsageError.

    The protocol has no key, so the host is one that no other machine reaches.
    """
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or uri not in (f"tcp://{host}:{port}", f"tcp://[{host}]:{port}"):
        raise UsageError(f"wyoming {uri!r}: expected tcp://HOST:PORT", field="wyoming")
    if host not in LOOPBACK:
        raise UsageError(
            f"wyoming {uri!r}: the Wyoming protocol has no key, so other machines must not reach it; "
            f"expected a host of {', '.join(LOOPBACK)}",
            field="wyoming",
        )
    return host, port
