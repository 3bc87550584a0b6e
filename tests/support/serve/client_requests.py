"""A proxy between clients and a server, which turns what clients send into the data of a test.

A request has `method`, `path`, `headers`, and `json` or `form`, or the `messages` of a socket. Audio is left
out: the value of such a field is AUDIO, and messages that differ in their audio only are one.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import h11
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

AUDIO, KEY = "AUDIO", "KEY"
SOUND_FIELDS = ("audio", "audio_data", "ref_audio")
# Lines that the transport, the machine or the version decides.
UNIMPORTANT = {
    *(b"host", b"content-length", b"accept-encoding", b"accept-language", b"user-agent", b"traceparent"),
    *(b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"transfer-encoding"),
    *(b"referer", b"sec-fetch-mode", b"sec-fetch-site", b"sec-fetch-dest", b"cookie"),
}


def requests(sent: bytes, key: str) -> Iterator[dict[str, Any]]:
    """The requests of one connection."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(sent)
    while isinstance(request := connection.next_event(), h11.Request):
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
        if not isinstance(event, h11.EndOfMessage):
            return
        headers = {name: value for name, value in request.headers}
        found: dict[str, Any] = {"method": request.method.decode(), "path": request.target.decode()}
        found["headers"] = [
            [name.decode(), value.decode().replace(key, KEY)]
            for name, value in request.headers
            if name not in UNIMPORTANT
            and not name.startswith((b"x-stainless", b"sec-ch-"))
            and not value.startswith(b"multipart/")
        ]
        if b"upgrade" in headers:
            yield found | {"messages": list(_messages(sent, connection.trailing_data[0]))}
            return
        yield found | _content(headers.get(b"content-type", b""), body)
        connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return
        connection.start_next_cycle()


def _content(kind: bytes, body: bytes) -> dict[str, Any]:
    if kind.startswith(b"multipart/"):
        parts = message_from_bytes(b"content-type: " + kind + b"\r\n\r\n" + body).get_payload()
        return {"form": [_field(part) for part in parts]}
    return {"json": _without_audio(json.loads(body))} if body else {}


def _field(part: Any) -> list[Any]:
    """The name and value of a field of a form; of a file, its name and type."""
    name = part.get_param("name", header="content-disposition")
    if part.get_filename() is None:
        return [name, part.get_payload(decode=True).decode()]
    return [name, {"file": part.get_filename(), "type": part["content-type"]}]


def _messages(sent: bytes, frames: bytes) -> Iterator[object]:
    protocol = ServerProtocol(max_size=None, extensions=[ServerPerMessageDeflateFactory()])
    protocol.receive_data(sent.removesuffix(frames))
    (request,) = protocol.events_received()
    assert isinstance(request, Request)
    protocol.send_response(protocol.accept(request))
    protocol.receive_data(frames)
    last: object = None
    for frame in protocol.events_received():
        if isinstance(frame, Frame) and frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            is_text = frame.opcode is Opcode.TEXT
            message = _without_audio(json.loads(bytes(frame.data))) if is_text else AUDIO
            if message != last:
                yield message
            last = message


def _without_audio(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _without_audio(each, key) for key, each in value.items()}
    return AUDIO if name in SOUND_FIELDS and isinstance(value, str) else value


def write_requests(connections: list[bytearray], key: str, path: Path) -> None:
    found: list[dict[str, Any]] = []
    for sent in connections:
        found += [each for each in requests(bytes(sent), key) if each not in found]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in found)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def start_proxy(port: int, server: int) -> list[bytearray]:
    """Passes connections of `port` on until the process ends. What clients send, per connection."""
    connections: list[bytearray] = []

    async def passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
        while data := await source.read(65536):
            kept += data
            sink.write(data)
            await sink.drain()
        sink.close()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = bytearray()
        connections.append(sent)
        source, sink = await asyncio.open_connection("127.0.0.1", server)
        both = passed(reader, sink, sent), passed(source, writer, bytearray())
        await asyncio.gather(*both, return_exceptions=True)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.start_server(connection, "127.0.0.1", port))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return connections
