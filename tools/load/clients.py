"""The clients. Each runs until it is cancelled, and notes in `Results` what it saw."""

import asyncio
import base64
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import websockets
from load.connection import Answer, Connection
from load.server import REFUSED, SEND_S, key_of
from support.runtime.recordings import sentences
from support.serve.loud_to_text import BLOCK, RATE, LoudToText
from support.serve.tone_speech import tone

from voxport.runtime.audio.files import from_pcm16, pcm16
from voxport.runtime.audio.turns import TurnSettings, turns_of

LOST = (OSError, asyncio.IncompleteReadError)  # a connection that the server has closed
SLOW_BYTES, SLOW_S = 1024, 1.0  # 1 kB/s
FRAMES = (9, 19, 29, 39)
SLOW_FRAMES = (9, 29, 38)
UNREAD_S = 2 * SEND_S
HALF_OPEN_S = 10.0
ARRIVAL_S = 3.0  # in which the clients arrive
LONGEST_WAIT_S = 2.0  # a longer `retry-after` is cut, so that the load stays
TURNS, PAUSE_S = 3, 0.8  # of a socket, and seconds between turns


@dataclass
class Results:
    served: Counter[str] = field(default_factory=Counter)  # by kind of client
    refused: Counter[str] = field(default_factory=Counter)  # by status
    refusal_ms: list[float] = field(default_factory=list)
    first_sound_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    loop_lag_ms: list[float] = field(default_factory=list)  # measured in the clients
    memory_mb: list[float] = field(default_factory=list)  # resident memory of the server at each second

    def refusal(self, answer: Answer, started: float) -> float:
        """Notes a refusal; returns the seconds to wait."""
        self.refused[str(answer.status)] += 1
        self.refusal_ms.append(1000 * (time.perf_counter() - started))
        code = json.loads(answer.body)["error"]["code"]
        if "retry-after" not in answer.headers or code not in ("server_is_overloaded", "rate_limit_exceeded"):
            self.wrong.append(f"refused with {answer.status} {code} {answer.headers}")
        return min(LONGEST_WAIT_S, float(answer.headers.get("retry-after", 1))) * random.uniform(0.5, 1)


@cache
def expected(text: str) -> bytes:
    return pcm16(tone(text))


async def forever(client: Callable[[], Awaitable[object]]) -> None:
    """Repeats a visit, whatever the server does with the connection. Clients do not all come at once.

    A client that is owed an answer notes its loss itself.
    """
    await asyncio.sleep(random.uniform(0, ARRIVAL_S))
    while True:
        try:
            await client()
        except (*LOST, websockets.WebSocketException):
            await asyncio.sleep(random.uniform(0, 0.2))


async def speak(port: int, name: str, kind: str, results: Results) -> None:
    """Reads an answer as fast as it comes, or as a slow reader."""
    is_slow, wait = kind == "slow", 0.0
    text = "a" * random.choice(SLOW_FRAMES if is_slow else FRAMES) + "."
    async with Connection(port, key_of(name), is_slow) as connection:
        started = time.perf_counter()
        try:
            answer = await connection.ask({"model": "tone", "input": text, "response_format": "pcm"})
        except LOST as error:
            results.wrong.append(f"{kind}: no answer, {error!r}")
            raise
        if answer.status in REFUSED:
            await connection.read(answer)
            wait = results.refusal(answer, started)
        elif answer.status == 200:
            try:
                await _read_speech(connection, answer, is_slow, started, results)
            except asyncio.CancelledError:  # the load ends
                _check_start(kind, text, answer, results)
                raise
            results.served[kind] += 1
            if answer.body != expected(text) or not answer.is_whole:
                results.wrong.append(f"{kind}: {len(answer.body)} of {len(expected(text))} bytes")
        else:
            results.wrong.append(f"{kind}: status {answer.status}")
    await asyncio.sleep(wait)


def _check_start(kind: str, text: str, answer: Answer, results: Results) -> None:
    """Checks an answer that is not read to its end."""
    results.served[f"{kind}, a part"] += 1
    if not expected(text).startswith(answer.body):
        results.wrong.append(f"{kind}: the first {len(answer.body)} bytes differ")


async def _read_speech(
    connection: Connection, answer: Answer, is_slow: bool, started: float, results: Results
) -> None:
    """Reads what the server sends. A connection that is reset leaves an answer that is not whole."""
    with suppress(*LOST):
        if is_slow:
            await _read_slowly(connection, answer)
            return
        await connection.read_piece(answer)
        results.first_sound_ms.append(1000 * (time.perf_counter() - started))
        await connection.read(answer)


async def _read_slowly(connection: Connection, answer: Answer) -> None:
    due, is_open = 0, True
    while is_open:
        is_open = await connection.read_piece(answer)
        while due < len(answer.body):
            due += SLOW_BYTES
            await asyncio.sleep(SLOW_S)


async def leave_early(port: int, results: Results) -> None:
    """Closes the connection while it waits, or after some pieces."""
    async with Connection(port, key_of("leaving")) as connection:
        body = {"model": "tone", "input": "a" * 200, "response_format": random.choice(("pcm", "mp3", "flac"))}
        try:
            answer = await asyncio.wait_for(connection.ask(body), random.uniform(0, 1))
        except TimeoutError:
            results.served["left before an answer"] += 1
            return
        if answer.status == 200:
            for _ in range(random.randrange(5)):
                await connection.read_piece(answer)
            results.served["left during an answer"] += 1
    await asyncio.sleep(random.uniform(0, 1))


async def half_open(port: int, results: Results) -> None:
    """Sends a part of a request, and waits."""
    async with Connection(port, key_of("half-open"), is_slow=True) as connection:
        start = b"POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 50\r\n"
        connection.writer.write(start[: random.randrange(len(start))] if random.random() < 0.7 else start)
        with suppress(TimeoutError):
            await asyncio.wait_for(connection.reader.read(2**16), HALF_OPEN_S)
        results.served["half-open"] += 1


async def read_nothing(port: int, results: Results) -> None:
    """Sends a whole request and reads the head of the answer only, until the server has ended it."""
    text, wait = "a" * FRAMES[-1] + ".", 0.0
    async with Connection(port, key_of("half-open"), is_slow=True) as connection:
        started = time.perf_counter()
        answer = await connection.ask({"model": "tone", "input": text, "response_format": "pcm"})
        if answer.status in REFUSED:
            await connection.read(answer)
            wait = results.refusal(answer, started)
        else:
            await asyncio.sleep(UNREAD_S)
            with suppress(*LOST):
                await connection.read(answer)
            _check_start("not read", text, answer, results)
            if answer.is_whole:
                results.wrong.append("not read: the server has not ended the answer")
    await asyncio.sleep(wait)


async def garbage(port: int, results: Results) -> None:
    async with Connection(port, key_of("garbage")) as connection:
        connection.writer.write(random.randbytes(random.randrange(1, 5000)) + b"\r\n\r\n")
        answer = await connection.reader.read(2**16)
        if answer and not answer.startswith(b"HTTP/1.1 4"):
            results.wrong.append(f"garbage was answered {answer[:50]!r}")
        results.served["garbage"] += 1
    await asyncio.sleep(random.uniform(0, 0.5))


@cache
def turns() -> tuple[bytes, list[str]]:
    """16-bit samples of sentences with pauses, and the text of each turn."""
    samples = sentences(TURNS, pause_s=PAUSE_S)
    content = pcm16(samples)
    found = turns_of([from_pcm16(content)], TurnSettings())
    texts = ["".join(delta.text for delta in LoudToText().transcribe(turn)).strip() for _, turn in found]
    assert len(texts) == TURNS
    return content, texts


async def transcribe(port: int, name: str, results: Results) -> None:
    """Transcribes live audio at the pace of speech, with turn detection."""
    headers = {"authorization": f"Bearer {key_of(name)}"}
    url = f"ws://127.0.0.1:{port}/v1/realtime?intent=transcription&model=loud"
    async with websockets.connect(url, additional_headers=headers) as socket:
        try:
            await _send_turns(socket, results)
        except websockets.ConnectionClosed as error:
            results.wrong.append(f"socket: {error!r}")
            raise


async def _send_turns(socket: websockets.ClientConnection, results: Results) -> None:
    form = {"type": "audio/pcm", "rate": RATE}
    audio = {"input": {"format": form, "turn_detection": {"type": "server_vad"}}}
    await socket.send(json.dumps({"type": "session.update", "session": {"audio": audio}}))
    content, expected_texts = turns()
    reading = asyncio.create_task(_read_turns(socket, len(expected_texts)))
    for start in range(0, len(content), 2 * BLOCK):
        block = base64.b64encode(content[start : start + 2 * BLOCK]).decode()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": block}))
        await asyncio.sleep(BLOCK / RATE)
    texts = await reading
    results.served["turn"] += len(texts)
    if texts != expected_texts:
        results.wrong.append(f"socket: {texts}")


async def _read_turns(socket: websockets.ClientConnection, count: int) -> list[str]:
    """The texts of `count` turns, or of an error."""
    texts: list[str] = []
    while len(texts) < count:
        message = json.loads(await socket.recv())
        if message["type"] == "error":
            return [*texts, str(message["error"])]
        if message["type"].endswith(".completed"):
            texts.append(message["transcript"])
    return texts
