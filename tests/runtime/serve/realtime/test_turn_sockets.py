"""Sockets that detect turns, end segments, and name fields without effect."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
import soxr
from mistralai.client import Mistral
from mistralai.client.models import AudioFormat
from support.runtime.recordings import sentences
from support.serve.http_server import RunningServer, running
from support.serve.loud_to_text import LoudToText
from support.serve.realtime_client import (
    COMPLETED,
    MISTRAL,
    OPENAI,
    SOUND,
    TEXT,
    VLLM,
    Socket,
    append,
    held_server,
    kinds,
    pcm,
    talk,
    text_of,
    update,
)

TRANSCRIPTION = "/v1/realtime?intent=transcription"
VAD = {"type": "server_vad", "threshold": 0.5}
INPUT = "session.audio.input"
STEPS = "speech_started", "speech_stopped", "committed", "completed"


def speech(rate: int, count: int = 2) -> list[bytes]:
    """16-bit samples of sentences with pauses of a second, 100 ms each."""
    samples = soxr.resample(sentences(count), 16000, rate)
    content = (samples * 32767).astype("<i2").tobytes()
    return [content[start : start + rate // 5] for start in range(0, len(content), rate // 5)]


def test_openai_client_gets_each_turn_without_a_commit(server: RunningServer) -> None:
    async def run() -> list[Any]:
        client: Any = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
            audio = {"transcription": {"model": "loud"}, "turn_detection": VAD}
            await connection.session.update(session={"type": "transcription", "audio": {"input": audio}})
            for block in speech(24000):
                await connection.input_audio_buffer.append(audio=text_of(block))
            events: list[Any] = []
            while kinds(events).count("completed") < 2:
                events.append(await connection.recv())
            return events

    events = asyncio.run(run())
    detection = events[1].session.audio.input.turn_detection
    assert (detection.type, detection.prefix_padding_ms, detection.silence_duration_ms) == (
        "server_vad",
        300,
        500,
    )
    for number in (0, 1):
        item = [event for event in events if event.type.endswith("completed")][number].item_id
        turn = [event for event in events if getattr(event, "item_id", None) == item]
        expected = ["speech_started", "speech_stopped", "committed", "completed"]
        assert kinds(turn) == expected and turn[-1].transcript.startswith("one")
        assert "".join(event.delta for event in turn if event.type.endswith("delta")) == turn[-1].transcript
        start, end = turn[0].audio_start_ms, next(e for e in turn if e.type.endswith("stopped")).audio_end_ms
        assert (start, end) == pytest.approx([(768, 4224), (4672, 8160)][number], abs=64)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"transcription": {"model": "gpt-4o-transcribe"}}, True),
        ({"transcription": {"model": "openai/whisper-1"}}, True),
        ({"transcription": {"model": "gpt-live-transcribe"}}, False),
        ({"transcription": {"model": "gpt-realtime-whisper"}}, False),
        ({"transcription": {"model": "loud"}}, False),
        ({"transcription": {"model": "gpt-4o-transcribe"}, "turn_detection": None}, False),
        ({"transcription": {"model": "loud"}, "turn_detection": {}}, True),
    ],
)
def test_the_default_is_that_of_the_model_whose_name_is_given(
    server: RunningServer, fields: dict[str, Any], expected: bool
) -> None:
    async def conversation(socket: Socket) -> bool:
        await socket.post(update(**fields))
        session = (await socket.until("session.updated"))[-1]["session"]
        for _ in range(2):
            await socket.post(update(transcription=fields["transcription"]))  # leaves turn_detection out
            again = (await socket.until("session.updated"))[-1]["session"]
            assert session["audio"] == again["audio"]
        return session["audio"]["input"]["turn_detection"] is not None

    assert talk(server, conversation, TRANSCRIPTION) == expected


def test_a_client_may_commit_in_a_turn_and_turn_detection_off(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> None:
        await socket.post(update(turn_detection=VAD))
        await append(socket, speech(24000, 1)[:20])
        await socket.send("input_audio_buffer.commit")
        events = kinds(await socket.until(COMPLETED))
        assert events[2:] == ["speech_started", "committed", "added", "done", "completed"]
        await append(socket, pcm(24000))  # no speech, so nothing but a commit ends it
        await socket.send("input_audio_buffer.commit")
        assert (await socket.until(COMPLETED))[-1]["transcript"] == TEXT
        await socket.send("input_audio_buffer.commit")
        assert (await socket.receive())["error"]["code"] == "input_audio_buffer_commit_empty"
        await socket.post(update(turn_detection=None))
        await append(socket, [*speech(24000), *pcm(24000)])
        await socket.send("input_audio_buffer.commit")
        assert "speech_started" not in kinds(await socket.until(COMPLETED))

    talk(server, conversation, OPENAI)


def test_an_update_between_turns_keeps_the_time_and_the_audio(server: RunningServer) -> None:
    async def start_of_turn(socket: Socket) -> int:
        await append(socket, speech(16000, 1))
        start: int = (await socket.until("input_audio_buffer.speech_started"))[-1]["audio_start_ms"]
        await socket.until(COMPLETED)
        return start

    async def conversation(socket: Socket) -> None:
        await socket.post(update(turn_detection=VAD))
        await append(socket, [bytes(4800)] * 10)  # a second
        await socket.post(update(format={"type": "audio/pcm", "rate": 16000}))
        assert await start_of_turn(socket) == pytest.approx(1768, abs=64)
        await socket.post(update(turn_detection={**VAD, "prefix_padding_ms": 0}))
        length_ms = len(b"".join(speech(16000, 1))) / 32
        assert await start_of_turn(socket) == pytest.approx(1000 + length_ms + 1088, abs=64)
        await append(socket, [bytes(6400)])
        await socket.post(update(turn_detection={**VAD, "prefix_padding_ms": 0}))  # as before
        await socket.send("input_audio_buffer.commit")
        assert kinds(await socket.until(COMPLETED)) == ["updated", "committed", "added", "done", "completed"]
        await append(socket, [bytes(6400)])
        await socket.send("input_audio_buffer.clear")
        await socket.send("input_audio_buffer.commit")
        assert (await socket.until("error"))[-1]["error"]["code"] == "input_audio_buffer_commit_empty"

    talk(server, conversation, OPENAI)


def test_a_turn_keeps_its_item_when_its_text_comes_after_the_next_turn_has_begun() -> None:
    with held_server() as (server, gate):

        async def conversation(socket: Socket) -> list[dict[str, Any]]:
            await socket.post(update(turn_detection=VAD))
            await append(socket, speech(24000))
            events = await socket.until("input_audio_buffer.speech_started")
            events += await socket.until("input_audio_buffer.speech_started")
            gate.set()
            for _ in range(2):
                events += await socket.until(COMPLETED)
            return events

        events = talk(server, conversation, OPENAI)
    items = {kind: [each["item_id"] for each in events if each["type"].endswith(kind)] for kind in STEPS}
    assert len(set(items["completed"])) == 2 and all(ids == items["completed"] for ids in items.values())


def test_time_without_speech_is_told(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> None:
        await socket.post(update(turn_detection={**VAD, "idle_timeout_ms": 1000}))
        await append(socket, [bytes(4800)] * 11)
        events = await socket.until(COMPLETED)
        assert kinds(events)[2:] == ["timeout_triggered", "committed", "added", "done", "completed"]
        assert (events[2]["audio_start_ms"], events[2]["audio_end_ms"]) == (0, 1024)

    talk(server, conversation, OPENAI)


def test_a_turn_that_is_refused_has_one_error_and_the_next_one_is_transcribed(
    server: RunningServer, refuse_next: Callable[[RunningServer], None]
) -> None:
    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        await socket.post(update(turn_detection=VAD))
        refuse_next(server)
        await append(socket, speech(24000))
        return await socket.until(COMPLETED)

    events = kinds(talk(server, conversation, OPENAI))
    assert events[2:] == ["error", *STEPS[:3], "added", "done", "completed"]


def test_hints_are_ignored_and_named_in_every_dialect(server: RunningServer) -> None:
    async def openai_dialect(socket: Socket) -> object:
        hints = {"languages": ["xx"], "keywords": ["Ada"], "prompt": "Ada.", "language": "xx", "x": None}
        vad = {"type": "semantic_vad", "eagerness": "low", "create_response": True}
        await socket.post(
            update(transcription=hints, noise_reduction={"type": "far_field"}, turn_detection=vad)
        )
        return sorted((await socket.until("session.updated"))[-1]["ignored"])

    async def mistral_dialect(socket: Socket) -> object:
        fields = {
            "context_bias": ["Ada"],
            "target_streaming_delay_ms": 100,
            "diarize": False,
            "language": None,
            "turn_detection": {},
        }
        await socket.send("session.update", session=fields)
        updated = (await socket.until("session.updated"))[-1]
        assert updated["session"]["target_streaming_delay_ms"] == 80, "the nearest of the bundle"
        await socket.send("session.update", session={})
        assert (await socket.until("session.updated"))[-1]["session"] == updated["session"]
        return updated["ignored"]

    async def vllm_dialect(socket: Socket) -> object:
        await socket.send("session.update", model="loud", temperature=0.5)
        await append(socket, pcm())
        await socket.send("input_audio_buffer.commit", final=True)
        found = await socket.until("transcription.done")
        return [names for event in found for names in event.get("ignored", ())]

    assert talk(server, openai_dialect, OPENAI) == [
        f"{INPUT}.noise_reduction",
        *(f"{INPUT}.transcription.{name}" for name in ("keywords", "language", "languages", "prompt")),
        *(f"{INPUT}.turn_detection.{name}" for name in ("create_response", "eagerness", "type")),
    ]
    assert talk(server, mistral_dialect, MISTRAL) == [
        "session.context_bias",
        "session.target_streaming_delay_ms",
    ]
    assert talk(server, vllm_dialect, VLLM) == ["temperature"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (OPENAI, update(noise_reduction={"type": "near_field"})),
        (OPENAI, update(turn_detection={"type": "semantic_vad"})),
        (MISTRAL, {"type": "session.update", "session": {"context_bias": ["Ada"]}}),
        (MISTRAL, {"type": "session.update", "session": {"target_streaming_delay_ms": 81}}),
        (VLLM, {"type": "session.update", "model": "loud", "temperature": 0.5}),
    ],
)
def test_a_strict_server_refuses_hints(path: str, message: dict[str, Any]) -> None:
    async def conversation(socket: Socket) -> dict[str, Any]:
        await socket.receive()
        await socket.post(message)
        return await socket.receive()

    with running({"loud": LoudToText()}, is_strict=True) as server:
        assert talk(server, conversation, path)["type"] == "error"


def test_a_flush_of_mistral_ends_a_segment_and_the_session_goes_on(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        await socket.receive()
        for _ in range(2):
            await append(socket, pcm(), "input_audio.append")
            await socket.send("input_audio.flush")
            done = (await socket.until("transcription.done"))[-1]
            assert (done["text"], done["usage"]["prompt_audio_seconds"]) == (TEXT, 1)
        await socket.send("input_audio.flush")  # without audio
        empty = await socket.receive()
        assert (empty["text"], empty["usage"]["prompt_audio_seconds"]) == ("", 0)
        await append(socket, pcm(), "input_audio.append")
        await socket.send("input_audio.flush")
        await socket.send("input_audio.end")  # as the client does
        events, code = await socket.rest()
        assert code == 1000
        return events

    assert kinds(talk(server, conversation, MISTRAL)) == ["done"]


@pytest.mark.parametrize(
    ("detection", "times"),
    [
        ({}, [0.768, 4.224, 4.672, 8.16]),
        ({"min_silence_ms": 200}, [0.768, 3.936, 4.672, 7.872]),
        ({"start_threshold": 1}, []),
    ],
)
def test_mistral_client_gets_the_turns_and_their_text(
    server: RunningServer, detection: Any, times: list[float]
) -> None:
    async def run() -> list[Any]:
        async def audio() -> AsyncIterator[bytes]:
            for block in speech(8000):
                yield block

        form = AudioFormat(encoding="pcm_s16le", sample_rate=8000)
        client = Mistral(api_key="none", server_url=server.url)
        stream = client.audio.realtime.transcribe_stream(
            audio_stream=audio(),
            model="loud",
            audio_format=form,
            turn_detection=detection,
            context_bias=["Ada"],
        )
        return [event async for event in stream]

    events = asyncio.run(run())
    turns = [event for event in events if event.type.startswith("turn.")]
    assert sorted(event.time_s for event in turns) == pytest.approx(times, abs=0.1)
    assert [event.end_reason for event in turns if event.type == "turn.end"] == ["threshold"] * (
        len(times) // 2
    )
    text = "".join(event.text for event in events if event.type.endswith("delta"))
    assert text == events[-1].text and (text.count("one") >= 2 or not times)


def test_sound_that_is_no_speech_needs_no_stream(server: RunningServer) -> None:
    """Sockets that listen take no live stream between turns."""

    async def conversation(socket: Socket) -> None:
        await socket.post(update(turn_detection=VAD))
        await append(socket, [base64.b64decode(SOUND)] * 20)
        await socket.post(update())
        assert kinds(await socket.until("session.updated")) == ["created", "updated"]
        await socket.until("session.updated")
        assert server.models.transcription_workers["loud"].is_idle

    talk(server, conversation, OPENAI)
