"""Audio to be transcribed: files of every kind, live pipes, and damaged input."""

import io
import logging
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import soundfile
from support.runtime.recordings import RATE, noise, write_recording

from voxport.bundle.errors import UsageError, VoxportError
from voxport.runtime.audio import opening
from voxport.runtime.audio.sources import LiveSource, Recording

BLOCK = RATE // 50  # of a live source


def samples_of(path: Path, rate: int = RATE) -> np.ndarray:
    return np.concatenate(list(Recording(path, rate).blocks()))


@pytest.mark.parametrize(
    ("name", "subtype"),
    [
        ("8.wav", "PCM_U8"),
        ("24.wav", "PCM_24"),
        ("float.wav", "FLOAT"),
        ("a.flac", "PCM_16"),
        ("ulaw.wav", "ULAW"),
    ],
)
def test_every_sample_width_is_read(tmp_path: Path, name: str, subtype: str) -> None:
    samples = noise(1)
    found = samples_of(write_recording(tmp_path / name, samples, subtype=subtype))
    assert found.dtype == np.float32 and len(found) == RATE
    assert np.abs(found - samples[:, 0]).max() < {"PCM_U8": 0.01, "ULAW": 0.02}.get(subtype, 1e-4)


def test_a_file_without_a_readable_sample_is_named(tmp_path: Path) -> None:
    """All frames of a FLAC are gone: libsndfile opens it, and reads none."""
    path = write_recording(tmp_path / "a.flac", noise(0.25), subtype="PCM_16")
    content = bytearray(path.read_bytes())
    frames = content.index(b"\xff\xf8")
    content[frames:] = bytes(len(content) - frames)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.flac: damaged"):
        Recording(path, RATE).peak_dbfs()


@pytest.mark.parametrize("rate", [1, 999, 384_001, 2**31 - 1])
def test_a_rate_that_no_recording_has_is_refused(tmp_path: Path, rate: int) -> None:
    with pytest.raises(UsageError, match=f"sample rate {rate}, expected 1000 to 384000"):
        Recording(write_recording(tmp_path / "a.wav", noise(0.1), rate), RATE)


@pytest.mark.parametrize("rate", [8000, 44100, 96000])
def test_converting_blocks_equals_converting_the_whole(tmp_path: Path, rate: int) -> None:
    """Blocks give the same samples as one piece, because the resampler keeps its state."""
    import soxr

    samples = noise(23.7, rate)
    found = samples_of(write_recording(tmp_path / "a.wav", samples, rate, subtype="FLOAT"))
    expected = soxr.resample(samples[:, 0], rate, RATE, "HQ")
    assert abs(len(found) - len(expected)) <= 1
    np.testing.assert_allclose(found[: len(expected)], expected[: len(found)], atol=1e-5)


@pytest.mark.slow
def test_an_hour_is_read_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "hour.wav"
    with soundfile.SoundFile(path, "w", 8000, 1, "PCM_U8") as file:
        for _ in range(60):
            file.write(np.zeros(60 * 8000))
    sizes = [len(block) for block in Recording(path, RATE).blocks()]
    assert abs(sum(sizes) - 3600 * RATE) <= 1 and max(sizes) < 2 * RATE


def test_input_that_is_not_audio_is_refused(tmp_path: Path) -> None:
    (tmp_path / "samples.raw").write_bytes(bytes(1000))
    with pytest.raises(UsageError, match="transcribe them live from stdin"):
        Recording(tmp_path / "samples.raw", RATE)
    write_recording(tmp_path / "none.wav", np.zeros((0, 1), np.float32))
    for name, message in (("none.wav", "has no samples"), ("gone.wav", "no such file")):
        with pytest.raises(UsageError, match=message):
            Recording(tmp_path / name, RATE)
    with pytest.raises(UsageError, match="is a folder"):
        Recording(tmp_path, RATE)


def test_a_sample_that_is_not_finite_is_located(tmp_path: Path) -> None:
    samples = noise(2)
    samples[24000] = np.nan
    with pytest.raises(UsageError, match=r"sample at 1\.500 s is not a finite number"):
        samples_of(write_recording(tmp_path / "nan.wav", samples, subtype="FLOAT"))


def test_unusual_recordings_log_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    samples_of(write_recording(tmp_path / "clipped.wav", np.sign(noise(1))))
    assert "clipped: 100.0 % of the samples are at full scale" in caplog.text
    caplog.clear()
    samples_of(write_recording(tmp_path / "loud.wav", 100 * noise(1), subtype="FLOAT"))
    assert "expected at most 1" in caplog.text
    caplog.clear()
    whole = write_recording(tmp_path / "whole.flac", noise(10))
    cut = tmp_path / "cut.flac"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    found = samples_of(cut)
    assert (
        2 * RATE < len(found) < 8 * RATE
        and "cut.flac" in caplog.text
        and ("truncated" in caplog.text or "damaged" in caplog.text)
    )
    caplog.clear()
    plain = write_recording(tmp_path / "plain.wav", noise(1))
    samples_of(plain)
    assert not caplog.text
    cut = tmp_path / "cut.wav"
    cut.write_bytes(plain.read_bytes()[:10000])
    assert len(samples_of(cut)) == (10000 - 44) // 2 and "truncated" in caplog.text


def live(content: bytes, rate: int = RATE, channels: int = 1) -> np.ndarray:
    return np.concatenate(
        [
            np.zeros(0, np.float32),
            *LiveSource(cast(io.RawIOBase, io.BytesIO(content)), rate, channels, RATE).blocks(),
        ]
    )


def test_raw_samples_of_any_rate_and_number_of_channels_are_converted() -> None:
    samples = (noise(2, 48000, 2) * 32767).astype("<i2")
    assert abs(len(live(samples.tobytes(), 48000, 2)) - 2 * RATE) <= 1
    plain = (noise(1) * 32767).astype("<i2")
    np.testing.assert_array_equal(live(plain.tobytes()), plain[:, 0].astype(np.float32) / 32768)


def test_a_pipe_that_closes_within_a_sample_drops_the_partial_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert len(live(b"\x00\x00" * 100 + b"\x01")) == 100 and "bytes left out: 1" in caplog.text
    assert len(live(b"")) == 0


class OneSecondQueue(LiveSource):
    queue_s = 1.0


class Pipe(io.RawIOBase):
    """Endless audio without waiting. Counts the bytes that were read."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks

    def read(self, size: int = -1) -> bytes:
        self.left -= 1
        return bytes(size) if self.left >= 0 else b""


def until(condition: Callable[[], bool]) -> None:
    """Waits for another thread, at most ten seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < 10
        time.sleep(0.01)


def test_a_source_faster_than_transcription_waits(caplog: pytest.LogCaptureFixture) -> None:
    pipe = Pipe(1000)
    blocks = OneSecondQueue(pipe, RATE, 1, RATE).blocks()
    next(blocks)
    until(lambda: "the source waits" in caplog.text)
    assert pipe.left > 940  # the queue holds 50 blocks
    assert sum(map(len, blocks)) == BLOCK * 999


@pytest.mark.parametrize("head", [b"RIFF\x24\x80\0\0WAVE", b"fLaC\0\0\0\x22", b"OggS\0\2", b"ID3\4"])
def test_a_file_is_not_a_live_source(head: bytes) -> None:
    with pytest.raises(UsageError, match="transcribe it as a recording"):
        list(LiveSource(cast(io.RawIOBase, io.BytesIO(head + bytes(1000))), RATE, 1, RATE).blocks())


def test_a_live_source_without_sound_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert not list(LiveSource(cast(io.RawIOBase, io.BytesIO(b"")), RATE, 1, RATE).blocks())
    assert "ended without any sound" in caplog.text


def test_a_source_that_fails_is_an_error() -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(VoxportError, match="Input/output error"):
        list(LiveSource(Broken(), RATE, 1, RATE).blocks())


def test_the_samples_before_an_end_are_returned() -> None:
    pipe = Pipe(10**9)
    source = OneSecondQueue(pipe, RATE, 1, RATE)
    blocks = source.blocks()
    next(blocks)
    until(source._queue.full)
    source.end()
    assert 50 * BLOCK <= sum(map(len, blocks)) <= 52 * BLOCK
    until(lambda: not source._thread.is_alive())


def test_a_source_without_sound_yet_has_not_ended() -> None:
    pieces = iter([b"\x00\x00" * 100, None, None, b"\x00\x00" * 100, b""])

    class NonBlocking(io.RawIOBase):
        def read(self, size: int = -1) -> bytes | None:
            return next(pieces)

    assert sum(map(len, LiveSource(NonBlocking(), RATE, 1, RATE).blocks())) == 200


def test_a_pipe_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is stopped by the closed pipe, long before it has written everything."""
    monkeypatch.setattr(opening, "MAX_INPUT_MB", 3)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(
        ["dd", "if=/dev/zero", f"of={pipe}", "bs=1M", "count=200"], stderr=subprocess.DEVNULL
    )
    with pytest.raises(UsageError, match="holds more than 3 MB; store it in a file"):
        Recording(pipe, RATE)
    assert writer.wait(10) != 0
