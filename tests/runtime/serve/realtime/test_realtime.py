"""Live transcription: the clients of OpenAI and Mistral, and messages as clients of vLLM send them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st
from mistralai.client import Mistral
from mistralai.client.models import AudioFormat
from support.serve.http_server import RunningServer, wait_until
from support.serve.loud_to_text import RATE
from support.serve.realtime_client import (
    MISTRAL,
    OPENAI,
    SOUND,
    VLLM,
    Socket,
    append,
    pcm,
    talk,
    text_of,
    update,
)

from voxport.runtime.serve.realtime.openai_dialect import DELAYS, delay_of


@pytest.mark.parametrize("rate", [24000, 16000])
def test_openai_client(server: RunningServer, rate: int) -> None:
    async def run() -> list[Any]:
        client: Any = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
            assert (await connection.recv()).type == "session.created"
            audio = {"format": {"type": "audio/pcm", "rate": rate}, "transcription": {"model": "loud"}}
            await connection.session.update(session={"type": "transcription", "audio": {"input": audio}})
            updated = await connection.recv()
            assert updated.session.audio.input.transcription.model == "loud"
            texts = []
            for _ in range(2):
                for block in pcm(rate):
                    await connection.input_audio_buffer.append(audio=text_of(block))
                await connection.input_audio_buffer.commit()
                events = []
                async for event in connection:
                    events.append(event)
                    if event.type.endswith("transcription.completed"):
                        break
                texts.append(event.transcript)
                kinds = [each.type.rpartition(".")[2] for each in events]
                assert kinds.index("committed") < kinds.index("added") < kinds.index("completed")
                assert "".join(each.delta for each in events if each.type.endswith(".delta")) == texts[-1]
                assert {each.item_id for each in events if hasattr(each, "item_id")} == {event.item_id}
                words = [word for each in events if each.type.endswith(".delta") for word in each.words]
                assert [word["start"] for word in words] == [0.0, 0.16, 0.32]  # in each utterance
            return texts

    assert asyncio.run(run()) == ["one two three"] * 2


def test_text_comes_while_audio_arrives(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        await socket.receive()
        await append(socket, pcm(24000))
        return await socket.until("conversation.item.input_audio_transcription.delta")

    event = talk(server, conversation, OPENAI)[-1]
    assert event["delta"] == "one" and event["words"] == [{"word": "one", "start": 0.0, "end": 0.08}]


def test_messages_of_vllm(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        assert (await socket.receive())["id"].startswith("sess-")
        await socket.send("session.update", model="loud")
        await socket.send("input_audio_buffer.commit")
        await append(socket, pcm())
        await socket.send("input_audio_buffer.commit", final=True)
        return await socket.until("transcription.done")

    messages = talk(server, conversation)
    assert messages[-1]["text"] == "one two three" == "".join(each["delta"] for each in messages[:-1])
    assert messages[-1]["usage"]["total_tokens"] == 16  # 8 of 80 ms, in and out


@pytest.mark.parametrize("rate", [8000, 16000, 48000, 96000])
def test_mistral_client(server: RunningServer, rate: int) -> None:
    """Each sound lasts two blocks: audio that is taken for another rate has other words. It is hardly louder
    than a word must be: the parts that resampling adds before and after it are no words.
    """

    async def run() -> list[Any]:
        client = Mistral(api_key="none", server_url=server.url)

        async def audio() -> AsyncIterator[bytes]:
            for block in pcm(rate, [0.15, 0.15, 0.0, 0.0] * 2):
                yield block

        form = AudioFormat(encoding="pcm_s16le", sample_rate=rate)
        return [
            event
            async for event in client.audio.realtime.transcribe_stream(
                audio_stream=audio(), model="loud", audio_format=form, target_streaming_delay_ms=480
            )
        ]

    events = asyncio.run(run())
    assert events[0].session.model == "loud" and events[-1].text == "one two three four"


def sound(rate: int = RATE) -> str:
    """One two three."""
    return text_of(b"".join(pcm(rate)))


def transcription(**fields: object) -> dict[str, Any]:
    return update(transcription=fields)


WRONG = [
    (OPENAI, "{", "invalid_json"),
    (OPENAI, "[" * 10_000, "invalid_json"),
    (OPENAI, "[]", "invalid_event"),
    (OPENAI, {"type": "conversation.item.create"}, "unknown_event"),
    (OPENAI, {"type": "input_audio_buffer.append", "audio": "***"}, "invalid_audio"),
    (OPENAI, {"type": "input_audio_buffer.append", "audio": "AA*A="}, "invalid_audio"),
    (OPENAI, {"type": "input_audio_buffer.append", "audio": "AAAA"}, "invalid_audio"),  # three bytes
    (OPENAI, {"type": "input_audio_buffer.append", "audio": ""}, "invalid_audio"),
    (OPENAI, {"type": "input_audio_buffer.append"}, "invalid_audio"),
    (OPENAI, {"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty"),
    (OPENAI, update(turn_detection={"type": "other"}), "invalid_value"),
    (OPENAI, update(turn_detection={"threshold": 2}), "invalid_value"),
    (OPENAI, update(format={"type": "audio/pcmu", "rate": 24000}), "invalid_value"),
    (OPENAI, transcription(diarize=True), "unsupported_value"),
    (OPENAI, {"type": "transcription_session.update", "session": {}}, "unknown_event"),
    (OPENAI, {"type": "session.update", "session": {"input_audio_format": "pcm16"}}, "unsupported_value"),
    (OPENAI, update(format={"rate": 4000}), "invalid_value"),
    (OPENAI, update(sample_rate=8000), "unsupported_value"),
    (OPENAI, update(turn_detection={"idle_timeout_ms": 99}), "invalid_value"),
    (OPENAI, update(turn_detection={"prefix_padding_ms": 5001}), "invalid_value"),
    (OPENAI, update(turn_detection={"silence_duration_ms": -1}), "invalid_value"),
    (OPENAI, {"type": "session.update", "session": {"audio": []}}, "invalid_value"),
    (OPENAI, transcription(delay="huge"), "invalid_value"),
    (OPENAI, transcription(model="x"), "model_not_found"),
    (VLLM, {"type": "input_audio_buffer.commit"}, "model_not_validated"),
    (VLLM, {"type": "input_audio_buffer.commit", "final": True}, "model_not_validated"),
    (VLLM, {"type": "session.update", "model": "other"}, "model_not_found"),
    (VLLM, {"type": "session.update", "model": "recordings"}, "model_not_live"),
    (MISTRAL, {"type": "input_audio.append", "audio": text_of(b"\0\0" * 131_073)}, 3001),
    (MISTRAL, {"type": "input_audio.end"}, 3001),
    (MISTRAL, {"type": "session.update", "session": {"diarize": True}}, 3001),
    (MISTRAL, {"type": "session.update", "session": {"target_streaming_delay_ms": 480.0}}, 3001),
    (MISTRAL, {"type": "session.update", "session": {"audio_format": {"encoding": "mulaw"}}}, 3001),
    (MISTRAL, "{", 3001),
]


def test_a_language_of_the_model_is_taken_and_shown(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> None:
        await socket.receive()
        await socket.post(transcription(language="en-US"))
        answer = await socket.receive()
        assert answer["session"]["audio"]["input"]["transcription"]["language"] == "en-US"

    talk(server, conversation, OPENAI)


@pytest.mark.parametrize("session", [{"audio": None}, update(format=None, transcription=None)["session"]])
def test_null_is_like_a_missing_field(server: RunningServer, session: dict[str, Any]) -> None:
    async def conversation(socket: Socket) -> None:
        await socket.receive()
        await socket.send("session.update", session=session)
        assert (await socket.receive())["type"] == "session.updated"

    talk(server, conversation, OPENAI)


@pytest.mark.parametrize("path, message, code", WRONG)
def test_a_wrong_message_is_named_and_the_session_goes_on(
    server: RunningServer, path: str, message: bytes | str | dict[str, Any], code: str | int
) -> None:
    async def conversation(socket: Socket) -> None:
        await socket.receive()
        for _ in range(2):
            await socket.post(message)
            answer = await socket.receive()
            assert answer["type"] == "error" and isinstance(answer["error"], str if path == VLLM else dict)
            error: Any = answer if path == VLLM else answer["error"]
            assert error["code"] == code

    talk(server, conversation, path)


def test_a_session_cannot_change_while_it_transcribes_and_can_be_cleared(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> None:
        await socket.receive()
        await socket.send("input_audio_buffer.append", audio=SOUND)
        await socket.post({**update(format={"rate": 16000}), "event_id": "mine"})
        error = (await socket.receive())["error"]
        assert error["code"] == "session_busy" and error["event_id"] == "mine"
        await socket.post(update(turn_detection={}))
        assert (await socket.receive())["error"]["code"] == "session_busy"
        await socket.send("input_audio_buffer.clear")
        assert (await socket.receive())["type"] == "input_audio_buffer.cleared"
        await socket.send("session.update", session={})
        await socket.until("session.updated")
        await append(socket, [bytes(4000)])
        await socket.send("input_audio_buffer.commit")
        assert (await socket.receive())["error"]["code"] == "input_audio_buffer_commit_empty"

    talk(server, conversation, OPENAI)


def test_a_session_does_not_change_after_audio(server: RunningServer) -> None:
    async def vllm(socket: Socket) -> tuple[str, str]:
        await socket.receive()
        await socket.post({"type": "session.update", "model": "loud"})
        await socket.post({"type": "input_audio_buffer.append", "audio": sound()})
        await socket.post({"type": "session.update", "model": "loud"})
        message = (await socket.until("error"))[-1]
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


@pytest.mark.parametrize(
    "path, status",
    [
        ("/v1/realtime?model=x", 404),
        (f"{VLLM}?model=recordings", 400),
        (OPENAI.replace("loud", "recordings"), 400),
        (MISTRAL + "x", 404),
        (MISTRAL.replace("loud", "recordings"), 400),
    ],
)
def test_a_socket_that_cannot_be_served_is_refused_with_a_status(
    server: RunningServer, path: str, status: int
) -> None:
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        talk(server, Socket.receive, path)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["param"] == "model"


@pytest.mark.parametrize("name, milliseconds", [(None, None), ("minimal", 80), ("low", 80), ("xhigh", 480)])
def test_names_of_delays_are_delays_of_the_bundle(
    server: RunningServer, name: str | None, milliseconds: int | None
) -> None:
    async def conversation(socket: Socket) -> int | None:
        await socket.receive()
        await socket.post(transcription(model="loud", delay=name))
        assert (await socket.receive())["session"]["audio"]["input"]["transcription"]["delay"] == name
        await socket.send("input_audio_buffer.append", audio=SOUND)
        worker = server.models.transcription_workers["loud"]
        while not worker._live:
            await asyncio.sleep(0.01)
        return worker._live[0].options.get("delay_ms")

    assert talk(server, conversation, OPENAI) == milliseconds
    wait_until(lambda: server.models.transcription_workers["loud"].is_idle)


def test_delays_between_the_least_and_the_largest() -> None:
    found = [delay_of(name, (2400, 80, 480)) for name in DELAYS]
    assert found == [80, 80, 480, 2400, 2400]


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
    change: dict[str, Any] = {"type": "session.update", "model": "loud"}
    audio = {"type": "input_audio_buffer.append", "audio": sound(24000 if path == OPENAI else RATE)}
    last = {"type": "input_audio_buffer.commit", "final": True}
    if path == OPENAI:
        change = update(format={"type": "audio/pcm", "rate": 24000}, transcription={"model": "loud"})
    if path == MISTRAL:
        change = {"type": "session.update", "session": {"audio_format": {"sample_rate": RATE}}}
        audio, last = {**audio, "type": "input_audio.append"}, {"type": "input_audio.end"}
    clears: dict[str, list[Any]] = {OPENAI: [{"type": "input_audio_buffer.clear"}], VLLM: [last], MISTRAL: []}
    first = [change] if path == VLLM else []  # the first message of that path decides the dialect

    async def conversation(socket: Socket) -> str:
        await socket.receive()
        for message in (*first, *frames, *clears[path], change, audio, last):
            await socket.post(message)
        text, key = "", {OPENAI: "transcript", VLLM: "text", MISTRAL: "text"}[path]
        while text != "one two three":
            message = await socket.receive()
            assert not is_internal(message), message
            text = message.get(key) or text
        return text

    assert talk(server, conversation, path) == "one two three"
    assert httpx2.get(f"{server.url}/readyz").status_code == 200
