"""Input that is wrong in ways which the tests of the endpoints do not have."""

import asyncio
import base64
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx2
import numpy as np
import pytest
import soundfile
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serve.http_server import RunningServer
from support.serve.loud_to_text import BLOCK, RATE, square_wave

Answer = TypeVar("Answer")
DEEP = "[" * 10_000 + "]" * 10_000


def test_deep_json_is_refused_where_it_is_valid_too(server: RunningServer) -> None:
    for content in (f'{{"model": "tone", "input": {DEEP}}}', f'{{"model": "tone", "x": {DEEP}}}', DEEP):
        response = httpx2.post(f"{server.url}/v1/audio/speech", content=content)
        assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("text", ["\U0001f600" * 100, "\U0001f468‍\U0001f469‍\U0001f467 ❤️", "()[]{}" * 600])
def test_a_text_without_words_is_refused(server: RunningServer, text: str) -> None:
    body = {"model": "tone", "input": text, "response_format": "pcm"}
    response = httpx2.post(f"{server.url}/v1/audio/speech", json=body, timeout=2)
    assert response.status_code == 400 and response.json()["error"]["param"] == "input"


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_flac_that_ends_early_is_refused(server: RunningServer, part: float) -> None:
    """What can be decoded has some words, whose transcript would look whole."""
    block = np.zeros(2 * BLOCK, np.float32)
    block[:BLOCK] = np.random.default_rng(1).uniform(-0.5, 0.5, BLOCK)
    file = io.BytesIO()
    soundfile.write(file, np.tile(block, 10), RATE, format="FLAC")
    content = file.getvalue()[: int(part * len(file.getvalue()))]
    url = f"{server.url}/v1/audio/transcriptions"
    response = httpx2.post(url, data={"model": "loud"}, files={"file": ("a.flac", content)})
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "invalid_audio" and error["param"] == "file"
    assert "damaged after" in error["message"] and "/tmp" not in error["message"]


def sound(values: list[float], rate: int) -> str:
    size = BLOCK * rate // RATE
    blocks = [square_wave(size, 32767 * value).astype("<i2") for value in values]
    return base64.b64encode(np.concatenate(blocks).tobytes()).decode()


WORDS = [0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0]  # one two three
OPENAI = "/v1/realtime?intent=transcription&model=loud"
VLLM, MISTRAL = "/v1/realtime", "/v1/audio/transcriptions/realtime?model=loud"


class Socket:
    def __init__(self, connection: websockets.ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: Any) -> None:
        raw = json.dumps(message) if isinstance(message, dict) else message
        await self._connection.send(raw)

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await asyncio.wait_for(self._connection.recv(), 5))
        return message

    async def until(self, kind: str) -> dict[str, Any]:
        while (message := await self.receive())["type"] != kind:
            assert message["type"] != "error", message
        return message


def talk(server: RunningServer, path: str, conversation: Callable[[Socket], Awaitable[Answer]]) -> Answer:
    async def run() -> Answer:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}{path}") as connection:
            socket = Socket(connection)
            await socket.receive()
            return await conversation(socket)

    return asyncio.run(run())


def test_two_commits_of_one_utterance(server: RunningServer) -> None:
    """The second has nothing to commit, and the first is answered."""

    async def openai(socket: Socket) -> tuple[str, str]:
        await socket.send({"type": "input_audio_buffer.append", "audio": sound(WORDS, 24000)})
        await socket.send({"type": "input_audio_buffer.commit"})
        await socket.send({"type": "input_audio_buffer.commit"})
        messages = [await socket.receive()]
        while len({message["type"] for message in messages} & {"error", COMPLETED}) < 2:
            messages.append(await socket.receive())
        (error,) = [each["error"]["code"] for each in messages if each["type"] == "error"]
        (text,) = [each["transcript"] for each in messages if each["type"] == COMPLETED]
        return error, text

    async def vllm(socket: Socket) -> tuple[str, str]:
        await socket.send({"type": "session.update", "model": "loud"})
        for final in (False, False):  # a second start is ignored
            await socket.send({"type": "input_audio_buffer.commit", "final": final})
        await socket.send({"type": "input_audio_buffer.append", "audio": sound(WORDS, RATE)})
        for final in (True, True):
            await socket.send({"type": "input_audio_buffer.commit", "final": final})
        messages = [await socket.receive()]
        while len({message["type"] for message in messages} & {"error", "transcription.done"}) < 2:
            messages.append(await socket.receive())
        (error,) = [each["code"] for each in messages if each["type"] == "error"]
        (text,) = [each["text"] for each in messages if each["type"] == "transcription.done"]
        return error, text

    assert talk(server, OPENAI, openai) == ("input_audio_buffer_commit_empty", "one two three")
    assert talk(server, VLLM, vllm) == ("invalid_audio", "one two three")


COMPLETED = "conversation.item.input_audio_transcription.completed"


def test_a_session_does_not_change_after_audio(server: RunningServer) -> None:
    async def vllm(socket: Socket) -> tuple[str, str]:
        await socket.send({"type": "session.update", "model": "loud"})
        await socket.send({"type": "input_audio_buffer.append", "audio": sound(WORDS, RATE)})
        await socket.send({"type": "session.update", "model": "loud"})
        while (message := await socket.receive())["type"] != "error":
            pass
        await socket.send({"type": "input_audio_buffer.commit", "final": True})
        return message["code"], (await socket.until("transcription.done"))["text"]

    async def mistral(socket: Socket) -> tuple[int, str]:
        await socket.send({"type": "input_audio.append", "audio": sound(WORDS, RATE)})
        await socket.send({"type": "session.update", "session": {"target_streaming_delay_ms": 480}})
        while (message := await socket.receive())["type"] != "error":
            pass
        await socket.send({"type": "input_audio.end"})
        return message["error"]["code"], (await socket.until("transcription.done"))["text"]

    assert talk(server, VLLM, vllm) == ("invalid_event", "one two three")
    assert talk(server, MISTRAL, mistral) == (3001, "one two three")


TYPES = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "input_audio.append",
    "input_audio.flush",
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("loud"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("audio", "input", "format", "rate", "type", "transcription", "model", "audio_format")
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
FIELDS = {name: VALUES for name in ("audio", "session", "model", "final", "event_id")}
MESSAGES = (
    st.fixed_dictionaries({"type": st.sampled_from(TYPES)}, optional=FIELDS)
    | st.fixed_dictionaries({"type": VALUES}, optional=FIELDS)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)


def is_internal(message: dict[str, Any]) -> bool:
    """Whether an error says that the server has a fault."""
    error = message.get("error")
    code = error.get("code") if isinstance(error, dict) else message.get("code")
    return message["type"] == "error" and code in ("internal_error", "processing_error", 3000)


@settings(max_examples=25)
@given(st.sampled_from((OPENAI, VLLM, MISTRAL)), st.lists(MESSAGES, max_size=6))
def test_any_frames_get_errors_and_the_session_goes_on(
    server: RunningServer, path: str, frames: list[Any]
) -> None:
    """After them the session transcribes as before. Each frame of the list may also be understood."""
    update: dict[str, Any] = {"type": "session.update", "model": "loud"}
    audio = {"type": "input_audio_buffer.append", "audio": sound(WORDS, 24000 if path == OPENAI else RATE)}
    last = {"type": "input_audio_buffer.commit", "final": True}
    if path == OPENAI:
        form = {"format": {"type": "audio/pcm", "rate": 24000}, "transcription": {"model": "loud"}}
        update = {"type": "session.update", "session": {"audio": {"input": form}}}
    if path == MISTRAL:
        update = {"type": "session.update", "session": {"audio_format": {"sample_rate": RATE}}}
        audio, last = {**audio, "type": "input_audio.append"}, {"type": "input_audio.end"}
    clears: dict[str, list[Any]] = {OPENAI: [{"type": "input_audio_buffer.clear"}], VLLM: [last], MISTRAL: []}
    first = [update] if path == VLLM else []  # the first message of that path decides the dialect

    async def conversation(socket: Socket) -> str:
        for message in (*first, *frames, *clears[path], update, audio, last):
            await socket.send(message)
        text, key = "", {OPENAI: "transcript", VLLM: "text", MISTRAL: "text"}[path]
        while text != "one two three":
            message = await socket.receive()
            assert not is_internal(message), message
            text = message.get(key) or text
        return text

    assert talk(server, path, conversation) == "one two three"
    assert httpx2.get(f"{server.url}/readyz").status_code == 200
