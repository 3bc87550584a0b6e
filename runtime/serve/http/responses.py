"""Responses that end when the client leaves, and requests whose bodies have limits."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import NoReturn, TypeVar

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, failure

LEAST_RATE = 1024  # bytes per second of a body, after the time in which its first part has to arrive
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class ClientLeft(ApiError):
    """The client closed the connection, or does not receive what was sent. Only metrics have the status."""

    def __init__(self) -> None:
        super().__init__(499, "the client left")


async def first_of(*coroutines: Coroutine[object, object, Result]) -> Result:
    """The result of the one that ends first; the others are cancelled. Raises what that one raises."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def while_connected(receive: Receive, work: Coroutine[object, object, Result]) -> Result:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientLeft.

    The body of the request has been read.
    """
    return await first_of(work, _disconnected(receive))


async def _disconnected(receive: Receive) -> NoReturn:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientLeft


class StreamedResponse(Response):
    """Sends pieces of bytes as they are made.

    An error before the first piece is answered as such. After it, an event of the type `error_type` has the
    error. Without `error_type` the connection is closed before the end of the body is marked.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        media_type: str,
        cancel: Callable[[], None],
        error_type: str | None = None,
    ):
        """`cancel` is called in the end, in every case."""
        super().__init__(media_type=media_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._pieces, self._cancel, self._error_type = pieces, cancel, error_type
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except Exception as raised:
            if not self._has_begun:
                raise
            failure(raised)  # the server closes the connection without the last chunk
        finally:
            self._cancel()

    async def _send(self, send: Send) -> None:
        try:
            async for piece in self._pieces:
                if not self._has_begun:
                    self._has_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except Exception as raised:
            if not self._has_begun or self._error_type is None:
                raise
            final = event({"type": self._error_type, "error": failure(raised).fields})
            await send({"type": "http.response.body", "body": final, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def with_body_limits(request: Request, size: int, what: str, seconds: float) -> Request:
    """The request with a body whose reading may raise ApiError.

    413: beyond `size` bytes. 408: if nothing arrives for `seconds`, or less than `LEAST_RATE` on average.
    """
    too_large = ApiError(413, f"the {what} has more than {size} bytes", "request_too_large")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > size:
        raise too_large
    receive, received, started = request.receive, 0, asyncio.get_running_loop().time()

    async def receive_counted() -> Message:
        nonlocal received
        try:
            now = asyncio.get_running_loop().time()
            latest = started + seconds + received / LEAST_RATE
            async with asyncio.timeout_at(min(now + seconds, latest)):
                part = await receive()
        except TimeoutError:
            message = f"no byte of the {what} arrived in {seconds:g} s, or fewer than {LEAST_RATE} a second"
            raise ApiError(408, message, "request_timeout") from None
        received += len(part.get("body", b""))
        if received > size:
            raise too_large
        return part

    return Request(request.scope, receive_counted)


def event(content: Json) -> bytes:
    """One server-sent event."""
    return f"event: {content['type']}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
