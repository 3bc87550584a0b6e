"""Pieces of encoded sound: what was sent is never changed."""

import asyncio
import gc
import io
import sys

import numpy as np
import pytest
import soundfile

from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.fields import SpeechFormat
from voxport.runtime.serve.speech.encoders import FILE_FORMATS, make_encoder

RATE, FRAME = 24000, 1920
SOUND = (0.3 * np.sin(2 * np.pi * 440 * np.arange(4 * RATE) / RATE)).astype(np.float32)


def pieces(name: SpeechFormat) -> list[bytes]:
    async def encode() -> list[bytes]:
        encoder = make_encoder(name, RATE, RATE)
        made = [await encoder.encode(pcm16(SOUND[at : at + FRAME])) for at in range(0, len(SOUND), FRAME)]
        return [*made, await encoder.finish()]

    return asyncio.run(encode())


@pytest.mark.parametrize("name", ["wav", "opus", "mp3"])
def test_sound_can_be_decoded_before_its_end(name: SpeechFormat) -> None:
    """Half of the pieces hold at least 1.7 s of 2 s: an MP3 decoder lacks a frame, Opus a page of 100 ms."""
    made = pieces(name)
    samples, _ = soundfile.read(io.BytesIO(b"".join(made[: len(made) // 2])))
    assert len(samples) >= 1.7 * RATE


@pytest.mark.parametrize("name", ["opus", "mp3", "flac"])
def test_an_encoder_that_is_dropped_reports_no_error(
    name: SpeechFormat, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As when a client leaves: a cycle is collected in any order of its parts."""
    encoder = make_encoder(name, RATE, RATE)
    asyncio.run(encoder.encode(pcm16(SOUND[:FRAME])))
    vars(encoder)["itself"] = encoder
    found = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    del encoder
    gc.collect()
    assert not found and "closed file" not in capfd.readouterr().err


def test_a_page_of_opus_has_at_most_100_ms() -> None:
    """Pages begin with OggS; the first two hold headers. 4 s are at least 40 pages."""
    assert b"".join(pieces("opus")).count(b"OggS") >= 2 + 40


def test_the_header_of_a_wav_says_that_its_length_is_unknown() -> None:
    content = b"".join(pieces("wav"))
    assert content[4:8] == content[40:44] == b"\xff\xff\xff\xff" and content[44:] == pcm16(SOUND)


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_a_closed_encoder_leaves_nothing_to_collect(name: SpeechFormat) -> None:
    """A request that is refused later has one. FFmpeg's memory would stay until a collection of garbage."""
    for _ in range(2):  # the first one makes objects that stay
        gc.collect()
        make_encoder(name, RATE, RATE).close()
    assert gc.collect() == 0
