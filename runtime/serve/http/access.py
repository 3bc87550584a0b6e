"""Keys, and `AccessMiddleware`, which checks every request and every socket before a handler runs.

It gives each request an id, and refuses foreign hosts, foreign pages, wrong keys, and more work than the
server takes. It is ASGI middleware, because dependencies of a framework do not guard sockets.
"""

import hmac
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.errors import ApiError, failure, overloaded
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics

OPEN_PATHS = frozenset(("/", "/healthz", "/readyz"))  # and everything below PAGE
PAGE = "/page/"
ANONYMOUS = ""  # the name of the key of a request that needs none
MIN_CHARACTERS = 16  # a shorter key can be guessed
PROBES = frozenset(("/healthz", "/readyz", "/metrics"))  # are never refused for load
KEY_PROTOCOL = "openai-insecure-api-key."  # a browser cannot set headers of a socket
POLICY_VIOLATION = 1008
REQUEST_ID = b"x-request-id"
STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
log = logging.getLogger(__name__)


class Keys:
    """Keys are compared by their hashes in constant time, all of them in every look-up."""

    def __init__(self, hashes: dict[str, bytes] | None = None):
        """`hashes`: name -> SHA-256 of the key. None: no key is needed."""
        self._hashes = hashes

    def name(self, key: str | None) -> str | None:
        """The name of a key; None if it is not one of them."""
        if self._hashes is None:
            return ANONYMOUS
        found, given = None, sha256((key or "").encode()).digest()
        for name, each in self._hashes.items():
            if hmac.compare_digest(each, given):
                found = name
        return found


def read_keys(path: Path) -> Keys:
    """Reads a file with a `name:key` per line. Raises UsageError that names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"keys: {path}: {reason}; expected lines of name:key", field="keys") from None
    hashes: dict[str, bytes] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        name, key = (part.strip() for part in line.partition(":")[::2])
        if not (key.isascii() and key.isprintable()):
            reason = "a key has characters that a header cannot have; expected printable ASCII"
            raise UsageError(f"keys: {path}, line {number}: {reason}", field="keys")
        if not name or len(key) < MIN_CHARACTERS or name in hashes:
            reason = f"expected name:key, a new name and a key of at least {MIN_CHARACTERS} characters"
            raise UsageError(f"keys: {path}, line {number}: {reason}", field="keys")
        hashes[name] = sha256(key.encode()).digest()
    if not hashes:
        raise UsageError(f"keys: {path}: has no keys; expected lines of name:key", field="keys")
    return Keys(hashes)


class AccessMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        limits: Limits,
        metrics: Metrics,
        origins: Iterable[str] = (),
        host: str = "localhost",
    ):
        """`origins`: URLs of web pages that may use the server, such as `https://example.org`. `host`: the
        server's own name.
        """
        self._app, self._keys, self._limits, self._metrics = app, keys, limits, metrics
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        names = (urlsplit(origin).hostname for origin in self._origins)
        self._hosts = frozenset(filter(None, (host.lower(), "localhost", *names)))
        self._open: Counter[str] = Counter()  # requests and sockets, by kind
        self._by_key: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id, started, status = f"req_{uuid.uuid4().hex}", time.perf_counter(), 500
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal status, has_started
            has_started = True
            if message["type"] in STARTS:
                status = message.get("status", 101)
                headers = [*message.get("headers", ()), (REQUEST_ID, request_id.encode())]
                message = {**message, "headers": headers}
            elif message["type"] == "websocket.close" and status == 500:
                status = 403  # the answer of ASGI servers if a socket is closed before it is accepted
            await send(message)

        try:
            with self._count_request(scope, self._check(scope)):
                await self._app(scope, receive, send_with_id)
        except Exception as raised:
            error = failure(raised)
            if not has_started:  # else the response is cut off, or is the answer to the error
                await refuse(scope, receive, send_with_id, error)
                status = error.status
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            elapsed = time.perf_counter() - started
            log.info("%s %s %s %d %.3f s", request_id, scope["type"], route, status, elapsed)

    def _check(self, scope: Scope) -> str:
        """The name of the request's key. Raises ApiError."""
        headers = Headers(scope=scope)
        self._check_host(headers.get("host", ""))
        self._check_origin(scope, headers)
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(PAGE):
            return ANONYMOUS
        name = self._keys.name(_key_of_request(headers))
        if name is None:
            reason = "the API key is missing or wrong; send Authorization: Bearer KEY"
            raise ApiError(401, reason, "invalid_api_key")
        return name

    def _check_host(self, host: str) -> None:
        """A page of a foreign name that resolves to this machine would count as the same origin."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # such as "["
            name = ""
        if name in self._hosts or _is_address(name):
            return
        reason = f"host {host!r} is not one of this server; its option --allow-origin can allow it"
        raise ApiError(403, reason, "host_not_allowed")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Any web page may open a socket, or send a simple request, to any server."""
        origin = headers.get("origin")
        if origin is None or origin.lower() in self._origins:
            return
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        if origin.lower() == f"{scheme}://{headers.get('host', '')}".lower():
            return
        reason = f"origin {origin!r} is not allowed; the server's option --allow-origin can allow it"
        raise ApiError(403, reason, "origin_not_allowed")

    @contextmanager
    def _count_request(self, scope: Scope, key: str) -> Iterator[None]:
        """Counts a request while it runs. Raises ApiError above a limit."""
        if scope["path"] in PROBES:
            yield
            return
        kind, is_socket = scope["type"], scope["type"] == "websocket"
        if self._open.total() >= self._limits.connections:
            raise overloaded("the server has too many connections")
        if is_socket and self._open[kind] >= self._limits.sockets:
            raise overloaded("the server has too many sockets")
        is_work = key != ANONYMOUS and (is_socket or scope["method"] == "POST")
        if is_work and self._by_key[key] >= self._limits.jobs_per_key:
            reason = f"the key has {self._limits.jobs_per_key} requests and sockets already"
            raise ApiError(429, reason, "rate_limit_exceeded", retry_after=1)
        self._open[kind] += 1
        self._by_key[key] += is_work
        self._metrics.sockets.set(self._open["websocket"])
        try:
            yield
        finally:
            self._open[kind] -= 1
            self._by_key[key] -= is_work
            self._metrics.sockets.set(self._open["websocket"])


def _key_of_request(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(KEY_PROTOCOL):
            return protocol.strip().removeprefix(KEY_PROTOCOL)
    return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


async def refuse(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    """Answers a request, or a socket that is not accepted yet, with an error."""
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.message[:120]})
            return
    await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
