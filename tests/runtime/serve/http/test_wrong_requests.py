"""Damaged recordings, and messages of sockets in any order and of any content."""

import io
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serve.http_server import RunningServer
from support.serve.loud_to_text import BLOCK, RATE
from support.serve.realtime_client import MISTRAL, OPENAI, VLLM, Socket, pcm, talk, text_of

COMPLETED = "conversation.item.input_audio_transcription.completed"


def sound(rate: int = RATE) -> str:
    """One two three."""
    return text_of(b"".join(pcm(rate)))


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


def test_two_commits_of_one_utterance(server: RunningServer) -> None:
    """The second has nothing to commit, and the first is answered."""

    async def openai(socket: Socket) -> tuple[str, str]:
        await socket.receive()
        await socket.post({"type": "input_audio_buffer.append", "audio": sound(24000)})
        await socket.post({"type": "input_audio_buffer.commit"})
        await socket.post({"type": "input_audio_buffer.commit"})
        messages = [await socket.receive()]
        while len({message["type"] for message in messages} & {"error", COMPLETED}) < 2:
            messages.append(await socket.receive())
        (error,) = [each["error"]["code"] for each in messages if each["type"] == "error"]
        (text,) = [each["transcript"] for each in messages if each["type"] == COMPLETED]
        return error, text

    async def vllm(socket: Socket) -> tuple[str, str]:
        await socket.receive()
        await socket.post({"type": "session.update", "model": "loud"})
        for final in (False, False):  # a second start is ignored
            await socket.post({"type": "input_audio_buffer.commit", "final": final})
        await socket.post({"type": "input_audio_buffer.append", "audio": sound()})
        for final in (True, True):
            await socket.post({"type": "input_audio_buffer.commit", "final": final})
        messages = [await socket.receive()]
        while len({message["type"] for message in messages} & {"error", "transcription.done"}) < 2:
            messages.append(await socket.receive())
        (error,) = [each["code"] for each in messages if each["type"] == "error"]
        (text,) = [each["text"] for each in messages if each["type"] == "transcription.done"]
        return error, text

    assert talk(server, openai, OPENAI) == ("input_audio_buffer_commit_empty", "one two three")
    assert talk(server, vllm, VLLM) == ("invalid_audio", "one two three")


def test_a_session_does_not_change_after_audio(server: RunningServer) -> None:
    async def vllm(socket: Socket) -> tuple[str, str]:
        await socket.receive()
        await socket.post({"type": "session.update", "model": "loud"})
        await socket.post({"type": "input_audio_buffer.append", "audio": sound()})
        await socket.post({"type": "session.update", "model": "loud"})
        while (message := await socket.receive())["type"] != "error":
            pass
        await socket.post({"type": "input_audio_buffer.commit", "final": True})
        return message["code"], (await socket.until("transcription.done"))[-1]["text"]

    async def mistral(socket: Socket) -> tuple[int, str]:
        await socket.receive()
        await socket.post({"type": "input_audio.append", "audio": sound()})
        await socket.post({"type": "session.update", "session": {"target_streaming_delay_ms": 480}})
        while (message := await socket.receive())["type"] != "error":
            pass
        await socket.post({"type": "input_audio.end"})
        return message["error"]["code"], (await socket.until("transcription.done"))[-1]["text"]

    assert talk(server, vllm, VLLM) == ("invalid_event", "one two three")
    assert talk(server, mistral, MISTRAL) == (3001, "one two three")


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
    audio = {"type": "input_audio_buffer.append", "audio": sound(24000 if path == OPENAI else RATE)}
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
        await socket.receive()
        for message in (*first, *frames, *clears[path], update, audio, last):
            await socket.post(message)
        text, key = "", {OPENAI: "transcript", VLLM: "text", MISTRAL: "text"}[path]
        while text != "one two three":
            message = await socket.receive()
            assert not is_internal(message), message
            text = message.get(key) or text
        return text

    assert talk(server, conversation, path) == "one two three"
    assert httpx2.get(f"{server.url}/readyz").status_code == 200
