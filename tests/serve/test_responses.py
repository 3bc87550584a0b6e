"""Responses that are streamed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.serve.responses import StreamedResponse

PIECES = 100


@pytest.mark.parametrize("ticks", range(9))
def test_a_response_ends_when_the_client_leaves_at_any_point_of_a_send(ticks):
    """`ticks`: turns of the event loop between the send of a piece and the news that the client left."""
    gone, sent, cancelled_at = asyncio.Event(), 0, []

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(PIECES):
            await asyncio.sleep(0)
            yield b"x"

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 5:
            leave_after(ticks)

    def leave_after(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(leave_after, turns - 1)
        else:
            gone.set()

    response = StreamedResponse(pieces(), "audio/pcm", lambda: cancelled_at.append(sent), send_s=10)
    asyncio.run(response({"type": "http"}, receive, send))
    assert cancelled_at[0] < PIECES / 2
