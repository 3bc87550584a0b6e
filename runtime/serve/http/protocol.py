"""`HttpProtocol`: reads requests that HTTP allows and uvicorn does not understand."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LISTS = (b"connection", b"upgrade")
WEBSOCKET = b"websocket"
Fields = list[tuple[bytes, bytes]]
HEADER_BYTES = 65_536  # of a request


class HttpProtocol(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = RequestReader(h11.SERVER, HEADER_BYTES)


class RequestReader(h11.Connection):
    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Requests have one line of each list, an upgrade to WebSockets alone, and a path as target."""
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        headers, target = list(event.headers), event.target
        for name in LISTS:
            headers = _join(headers, name)
        scheme, found, rest = target.partition(b"://")
        if found and scheme.isalpha():  # a client that takes this server for a proxy
            authority, slash, path = rest.partition(b"/")
            target = slash + path or b"/"
            headers = [(b"host", authority), *(each for each in headers if each[0] != b"host")]
        return h11.Request(
            method=event.method, headers=headers, target=target, http_version=event.http_version
        )


def _join(headers: Fields, name: bytes) -> Fields:
    """The lines of a list become one line."""
    found = (token.strip() for key, value in headers if key == name for token in value.split(b","))
    tokens = list(filter(None, found))
    if not tokens:
        return headers
    if name == b"upgrade" and WEBSOCKET in (token.lower() for token in tokens):
        tokens = [WEBSOCKET]
    return [*(each for each in headers if each[0] != name), (name, b", ".join(tokens))]
