"""A small HTTP client over asyncio, which reads at any pace and leaves at any time."""

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

READ_BUFFER = 4096  # bytes for a slow reader. With the SEND_BUFFER of the server, its pace slows the server


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False


class Connection:
    """One request on a connection of its own."""

    def __init__(self, port: int, key: str, is_slow: bool = False) -> None:
        self._port, self._key, self._is_slow = port, key, is_slow

    async def __aenter__(self) -> "Connection":
        raw = socket.socket()
        raw.setblocking(False)
        if self._is_slow:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BUFFER)
        try:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self._port))
        except BaseException:
            raw.close()
            raise
        limit = READ_BUFFER if self._is_slow else 2**16
        self.reader, self.writer = await asyncio.open_connection(sock=raw, limit=limit)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.transport.abort()

    async def ask(self, body: Mapping[str, object]) -> Answer:
        """Sends a text to speak; returns the head of the answer."""
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self.writer.write(head.encode() + content)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return Answer(int(lines[0].split()[1]), headers)

    async def read_piece(self, answer: Answer) -> bool:
        """Reads the next piece of the body. False at the end, when `is_whole` is whether it was marked."""
        if "content-length" in answer.headers:
            answer.body += await self.reader.readexactly(int(answer.headers["content-length"]))
            answer.is_whole = True
            return False
        try:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            answer.body += (await self.reader.readexactly(size + 2))[:-2]
        except asyncio.IncompleteReadError:
            return False
        answer.is_whole = size == 0
        return size > 0

    async def read(self, answer: Answer) -> None:
        while await self.read_piece(answer):
            pass
