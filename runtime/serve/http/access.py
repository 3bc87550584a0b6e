"""Keys, and `AccessMiddleware`, which checks every request and every socket before a handler runs.

It gives each request an id, and refuses foreign hosts, foreign pages, wrong keys, and more work than the
server takes. It is ASGI middleware, because dependencies of a framework do not guard sockets.
"""

import hmac
import logging
import re
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
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.address import one_of
from voxport.runtime.serve.errors import ApiError, failure, overloaded
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics

OPEN_PATHS = frozenset(("/", "/health", "/healthz", "/readyz"))  # and everything below PAGE
PAGE = "/page/"
ANONYMOUS = ""  # the name of the key of a request that needs none
MIN_CHARACTERS = 16  # a shorter key can be guessed
PROBES = frozenset(("/health", "/healthz", "/readyz", "/metrics"))  # are never refused for load
KEY_HEADERS = ("api-key", "x-api-key")  # as well as Authorization
KEY_PROTOCOL = "openai-insecure-api-key."  # a browser cannot set headers of a socket
POLICY_VIOLATION = 1008
WEB = re.compile("https?://", re.IGNORECASE)
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
        hosts: Iterable[str] = (),
    ):
        """`origins`: web pages that may use the server, such as `https://example.org`. `hosts`: its names.

        A `*` in one of them is any text.
        """
        self._app, self._keys, self._limits, self._metrics = app, keys, limits, metrics
        self._origins = re.compile(origin_pattern(origins))
        pages = (urlsplit(origin).hostname for origin in origins if WEB.match(origin) and "*" not in origin)
        names = ("localhost", *hosts, *filter(None, pages))
        self._hosts = re.compile(one_of(name.rstrip(".") for name in names))
        self._open: Counter[str] = Counter()  # requests and sockets, by kind
        self._by_key: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope = _usual(scope)
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
        if "host" in headers:  # HTTP/1.0 may lack it, browsers always send it
            self._check_host(headers["host"])
        self._check_origin(scope, headers)
        if scope["path"] in OPEN_PATHS or f"{scope['path']}/".startswith(PAGE):
            return ANONYMOUS
        for key in (*_keys_of_request(scope, headers), None):
            if (name := self._keys.name(key)) is not None:
                return name
        reason = "the API key is missing or wrong; send Authorization: Bearer KEY"
        raise ApiError(401, reason, "invalid_api_key")

    def _check_host(self, host: str) -> None:
        """A page of a foreign name that resolves to this machine would count as the same origin."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # such as "["
            name = ""
        name = name.removesuffix(".")
        if self._hosts.fullmatch(name) or _is_address(name):
            return
        reason = f"host {host!r} is not one of this server; its option --allow-host {name} allows it"
        raise ApiError(403, reason, "host_not_allowed")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Any web page may open a socket, or send a simple request, to any server."""
        origin = headers.get("origin")
        if origin is None or self._origins.fullmatch(origin):
            return
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        if origin.lower() == f"{scheme}://{headers.get('host', '')}".lower():
            return
        reason = f"origin {origin!r} is not allowed; the server's option --allow-origin {origin} allows it"
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


def origin_pattern(origins: Iterable[str]) -> str:
    """A regular expression for each of the origins, which browsers send without a final slash."""
    return one_of(each if each.endswith("//") else each.rstrip("/") for each in origins)


class CorsMiddleware(CORSMiddleware):
    """Lets pages of `origins` read answers, refusals included. It answers their preflights, without a key."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]):
        super().__init__(
            app,
            allow_origin_regex=origin_pattern(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=["*"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.is_allowed_origin(Headers(scope=scope).get("origin", "")):
            await super().__call__(scope, receive, send)
        else:  # `AccessMiddleware` refuses pages of other origins
            await self.app(scope, receive, send)


def _usual(scope: Scope) -> Scope:
    """The path without superfluous slashes. HEAD becomes GET: the HTTP server leaves out the body."""
    found = {**scope, "path": "/" + "/".join(filter(None, scope["path"].split("/")))}
    return {**found, "method": "GET"} if found.get("method") == "HEAD" else found


def _keys_of_request(scope: Scope, headers: Headers) -> Iterator[str]:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield key.strip()
    yield from (headers[name].strip() for name in KEY_HEADERS if name in headers)
    for protocol in scope.get("subprotocols", ()):
        if protocol.startswith(KEY_PROTOCOL):
            yield protocol.removeprefix(KEY_PROTOCOL)


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
