"""A connection ends when its client receives nothing, not when it receives slowly."""

import asyncio
from collections.abc import Iterator

import pytest

from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.send_timer import SendTimer

SEND_S = 0.05


class Base(asyncio.Protocol):
    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Timed(SendTimer, Base):
    limits = Limits(send_s=SEND_S)

    def __init__(self, transport: "Transport") -> None:
        self.loop, self.transport = asyncio.get_running_loop(), transport
        transport.protocol = self
        self.connection_made(transport)


class Transport(asyncio.Transport):
    """Has the next of `sizes` as its unsent bytes at each look, and in the end always the last one."""

    protocol: Timed

    def __init__(self, sizes: Iterator[int], closing: bool) -> None:
        super().__init__()
        self._sizes, self._unsent, self._closing, self.looks, self.aborted = sizes, 0, closing, 0, False

    def get_write_buffer_size(self) -> int:
        self.looks, self._unsent = self.looks + 1, next(self._sizes, self._unsent)
        return self._unsent

    def is_closing(self) -> bool:
        return self._closing

    def get_protocol(self) -> Timed:
        return self.protocol

    def abort(self) -> None:
        self.aborted = True
        self.protocol.connection_lost(None)


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("sizes", [[9, 8, 7, 6, 5], [9]])
def test_a_client_is_waited_for_while_its_unsent_bytes_become_fewer(sizes: list[int], closing: bool) -> None:
    async def run() -> Transport:
        transport = Transport(iter(sizes), closing)
        timed = Timed(transport)
        if not closing:
            timed.pause_writing()
        await asyncio.sleep((len(sizes) + 4) * SEND_S)
        return transport

    found = asyncio.run(run())
    assert found.aborted and found.looks == len(sizes) + 1


def test_a_client_that_has_received_is_not_watched() -> None:
    async def run() -> Transport:
        transport = Transport(iter([9]), closing=False)
        timed = Timed(transport)
        timed.pause_writing()
        timed.resume_writing()
        await asyncio.sleep(3 * SEND_S)
        timed.connection_lost(None)
        return transport

    assert not asyncio.run(run()).aborted
