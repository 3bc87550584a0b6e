"""Encodings of audio that sockets take, and those that they refuse."""

import io
from typing import Any

import numpy as np
import pytest
import soundfile
from support.serve.http_server import RunningServer
from support.serve.loud_to_text import BLOCK, square_wave
from support.serve.realtime_client import (
    BLOCKS,
    COMPLETED,
    MISTRAL,
    OPENAI,
    TEXT,
    Socket,
    append,
    kinds,
    pcm,
    talk,
    text_of,
    update,
)

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.realtime.input_audio import decode_audio


def encoded(encoding: str, rate: int) -> bytes:
    """Three words in an encoding of libsndfile. The other law of G.711 makes them too quiet."""
    samples = np.concatenate([square_wave(BLOCK * rate // 16000, 0.82 * value) for value in BLOCKS])
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format="RAW", subtype=encoding, endian="LITTLE")
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("pcm_s16le", np.array([-32768, 0, 16384], "<i2").tobytes(), [-1, 0, 0.5]),
        ("pcm_s32le", np.array([-(2**31), 2**30], "<i4").tobytes(), [-1, 0.5]),
        ("pcm_mulaw", b"\x00\x80\xff", [-32124 / 2**15, 32124 / 2**15, 0]),  # of table 2 of G.711, 14 bits
        ("pcm_alaw", b"\x2a\xaa\xd5", [-32256 / 2**15, 32256 / 2**15, 8 / 2**15]),  # of table 1, 13 bits
    ],
)
def test_samples_are_floats_from_minus_1_to_1(name: str, content: bytes, expected: list[float]) -> None:
    assert decode_audio(text_of(content), name).tolist() == expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_are_finite(value: float) -> None:
    with pytest.raises(ApiError, match="finite"):
        decode_audio(text_of(np.array([0, value], "<f4").tobytes()), "pcm_f32le")


def test_the_last_samples_are_transcribed(server: RunningServer) -> None:
    """They are fewer than the steps in which audio is converted."""

    async def conversation(socket: Socket) -> Any:
        await append(socket, [*pcm(24000, [0, 0]), pcm(24000, [0.5])[0][:480]])
        await socket.send("input_audio_buffer.commit")
        done = (await socket.until(COMPLETED))[-1]
        return done["transcript"], done["usage"]["seconds"]

    assert talk(server, conversation, OPENAI) == ("one", 0.17)


@pytest.mark.parametrize(("name", "encoding"), [("audio/pcmu", "ULAW"), ("audio/pcma", "ALAW")])
def test_openai_takes_the_encodings_of_telephones(server: RunningServer, name: str, encoding: str) -> None:
    async def conversation(socket: Socket) -> Any:
        await socket.post(update(format={"type": name}))
        assert (await socket.until("session.updated"))[-1]["session"]["audio"]["input"]["format"][
            "rate"
        ] == 8000
        await socket.send("input_audio_buffer.append", audio=text_of(encoded(encoding, 8000)))
        await socket.send("input_audio_buffer.commit")
        return (await socket.until(COMPLETED))[-1]["transcript"]

    assert len(talk(server, conversation, OPENAI).split()) >= 3  # resampling adds to the sounds


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pcm_s32le", encoded("PCM_32", 16000)),
        ("pcm_f32le", encoded("FLOAT", 16000)),
        ("pcm_f16le", np.frombuffer(encoded("FLOAT", 16000), "<f4").astype("<f2").tobytes()),
        ("pcm_mulaw", encoded("ULAW", 16000)),
        ("pcm_alaw", encoded("ALAW", 16000)),
    ],
)
def test_mistral_takes_its_encodings(server: RunningServer, name: str, content: bytes) -> None:
    async def conversation(socket: Socket) -> Any:
        await socket.send(
            "session.update", session={"audio_format": {"encoding": name, "sample_rate": 16000}}
        )
        await append(socket, [content], "input_audio.append")
        await socket.send("input_audio.flush")
        return (await socket.until("transcription.done"))[-1]["text"]

    assert talk(server, conversation, MISTRAL) == TEXT


MANY_UNKNOWN = {f"unknown{index}": 1 for index in range(30)}  # more than an answer names


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        (OPENAI, update(format={"type": "audio/opus"})),
        (OPENAI, {"type": "session.update", "session": {"input_audio_format": "g711_ulaw"}}),
        (OPENAI, {"type": "session.update", "session": MANY_UNKNOWN | {"output_format": "g711_ulaw"}}),
        (OPENAI, {"type": "transcription_session.update", "session": {"input_audio_format": "g711_ulaw"}}),
        (MISTRAL, {"type": "session.update", "session": {"audio_format": {"encoding": "opus"}}}),
    ],
)
def test_audio_is_refused_after_its_format_was(
    server: RunningServer, path: str, refused: dict[str, Any]
) -> None:
    """It would be decoded as something else. Each part has one error, and one at its end."""

    async def conversation(socket: Socket) -> None:
        await socket.receive()
        await socket.post(refused)
        assert (await socket.receive())["type"] == "error"
        is_mistral = path == MISTRAL
        kind = "input_audio.append" if is_mistral else "input_audio_buffer.append"
        await append(socket, pcm(), kind)
        await socket.post({"type": "session.update", "session": {}})
        events = await socket.until("session.updated")
        assert kinds(events) == ["error", "updated"] and "until its format" in events[0]["error"]["message"]
        await append(socket, pcm(16000 if is_mistral else 24000), kind)
        await socket.send("input_audio.flush" if is_mistral else "input_audio_buffer.commit")
        done = (await socket.until("transcription.done" if is_mistral else COMPLETED))[-1]
        assert done.get("text", done.get("transcript")) == TEXT

    talk(server, conversation, path)


def test_binary_messages_and_audio_files_have_an_error_that_says_what_to_send(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> None:
        await socket.receive()
        for _ in range(20):
            await socket.post(b"\0" * 4800)
        assert "base64" in (await socket.receive())["error"]["message"]
        for start in (b"RIFF", b"\0\0\0\x18ftypiso5", b"\x1a\x45\xdf\xa3"):
            await append(socket, [start + bytes(2000)])
            assert "raw samples" in (await socket.receive())["error"]["message"]
        await socket.send("input_audio_buffer.append", audio=text_of(bytes(100)), sample_rate=8000)
        assert "sample_rate" in (await socket.receive())["error"]["message"]

    talk(server, conversation, OPENAI)
