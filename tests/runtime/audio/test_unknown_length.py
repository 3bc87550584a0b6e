"""Recordings whose header has no length, as encoders write to a pipe."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.sources import Recording

RATE = 16_000
TOTAL_SAMPLES = slice(21, 26)  # of a FLAC: the last 36 bits of these bytes; the first 4 belong to the width


def flac_without_length(path: Path) -> np.ndarray:
    samples = np.random.default_rng(1).uniform(-0.3, 0.3, int(2.5 * RATE)).astype(np.float32)
    soundfile.write(path, samples, RATE, format="FLAC")
    found, _ = soundfile.read(path, dtype="float32")
    content = bytearray(path.read_bytes())
    content[TOTAL_SAMPLES] = bytes([content[21] & 0xF0, 0, 0, 0, 0])
    path.write_bytes(content)
    result: np.ndarray = found
    return result


def test_a_flac_without_a_length_is_read_twice(tmp_path: Path) -> None:
    expected = flac_without_length(tmp_path / "a.flac")
    recording = Recording(tmp_path / "a.flac", RATE)
    assert recording.length_s is None
    assert recording.peak_dbfs() == pytest.approx(20 * np.log10(np.abs(expected).max()), abs=0.01)
    assert recording.damage is None
    np.testing.assert_array_equal(np.concatenate(list(recording.blocks())), expected)


def test_a_flac_without_a_length_from_a_pipe_is_read_twice(tmp_path: Path) -> None:
    expected, pipe = flac_without_length(tmp_path / "a.flac"), tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes((tmp_path / "a.flac").read_bytes())).start()
    recording = Recording(pipe, RATE)
    recording.peak_dbfs()
    np.testing.assert_array_equal(np.concatenate(list(recording.blocks())), expected)


def test_the_measurement_can_be_stopped(tmp_path: Path) -> None:
    flac_without_length(tmp_path / "a.flac")
    seen = []

    def check(seconds: float) -> None:
        seen.append(seconds)
        if seconds >= 2:
            raise UsageError("too long")

    with pytest.raises(UsageError, match="too long"):
        Recording(tmp_path / "a.flac", RATE).peak_dbfs(check)
    assert seen == [1.0, 2.0]
