"""Every format is read back as it was written. A failed write does not change the folder."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from voxport.bundle.errors import UsageError, VoxportError
from voxport.runtime.audio.files import FORMATS, check_format, pcm16, write_audio

RATE = 24000
HALF_STEP = 0.5 / 32767 + 1e-7


def tone(seconds: float = 0.5, rate: int = RATE) -> np.ndarray:
    times = np.arange(int(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)


def read(path: Path) -> tuple[np.ndarray, int]:
    if path.suffix == ".pcm":
        return np.frombuffer(path.read_bytes(), dtype="<i2") / 32767, RATE
    samples, rate = soundfile.read(path, dtype="int16")
    return samples / 32767, rate


@pytest.mark.parametrize("extension", [".wav", ".flac", ".pcm", ".WAV"])
def test_lossless_formats_are_read_back_within_half_a_step(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a{extension}"
    write_audio(path, tone(), RATE)
    samples, rate = read(path)
    assert rate == RATE
    assert samples.shape == tone().shape
    assert np.abs(samples - tone()).max() <= HALF_STEP


@pytest.mark.parametrize("extension", [".mp3", ".ogg"])
def test_lossy_formats_are_read_back_similar_at_the_same_rate_and_length(
    tmp_path: Path, extension: str
) -> None:
    path = tmp_path / f"a{extension}"
    write_audio(path, tone(), RATE)
    samples, rate = read(path)
    assert rate == RATE
    assert samples.shape == tone().shape
    assert np.corrcoef(samples, tone())[0, 1] > 0.99


@pytest.mark.parametrize(
    ("extension", "rate", "written"),
    [
        (".ogg", 22050, 24000),
        (".ogg", 44100, 48000),
        (".ogg", 96000, 48000),
        (".mp3", 96000, 48000),
        (".wav", 22050, 22050),
    ],
)
def test_only_a_rate_that_the_format_does_not_support_is_resampled(
    tmp_path: Path, extension: str, rate: int, written: int
) -> None:
    path = tmp_path / f"a{extension}"
    write_audio(path, tone(rate=rate), rate)
    samples, read_rate = read(path)
    assert read_rate == written
    assert abs(len(samples) - written * 0.5) <= 1
    expected = tone(rate=written)
    assert np.corrcoef(samples[: len(expected)], expected[: len(samples)])[0, 1] > 0.99


@pytest.mark.parametrize("extension", FORMATS)
def test_minutes_of_audio_are_written_completely(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a{extension}"
    write_audio(path, np.tile(tone(1.0), 170), RATE)
    assert len(read(path)[0]) == 170 * RATE


@pytest.mark.parametrize("extension", FORMATS)
def test_one_sample_can_be_written(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a{extension}"
    write_audio(path, np.zeros(1, np.float32), RATE)
    assert len(read(path)[0]) == 1


def test_loud_samples_are_clipped(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    write_audio(path, np.array([2.0, -2.0, 1.0, -1.0], np.float32), RATE)
    assert soundfile.read(path, dtype="int16")[0].tolist() == [32767, -32767, 32767, -32767]


def test_writing_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    with path.open("rb") as reader:  # an open reader keeps the old content
        write_audio(path, tone(), RATE)
        assert reader.read() == b"old"
    assert soundfile.info(path).frames == len(tone())
    assert os.listdir(tmp_path) == ["a.wav"]


@pytest.mark.parametrize("name", ["a.aac", "a", ".wav", "a.wav.txt"])
def test_an_unknown_extension_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.wav, \.flac, \.mp3, \.ogg, \.opus, \.pcm"):
        check_format(tmp_path / name)
    with pytest.raises(UsageError):
        write_audio(tmp_path / name, tone(), RATE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_closed_to_writing_is_a_usage_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="not writable"):
        check_format(tmp_path / "a.wav")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite_is_an_error_that_locates_it(tmp_path: Path, bad: float) -> None:
    samples = tone()
    samples[7] = bad
    with pytest.raises(VoxportError, match="sample 7 of 12000"):
        write_audio(tmp_path / "a.wav", samples, RATE)
    with pytest.raises(VoxportError, match="sample 7 of 12000"):
        pcm16(samples)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("shape", [(0,), (2, 100)])
def test_samples_of_another_shape_are_an_error(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(VoxportError, match="expected samples"):
        write_audio(tmp_path / "a.wav", np.zeros(shape, np.float32), RATE)


def test_a_rate_that_no_format_supports_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VoxportError, match="cannot encode"):
        write_audio(tmp_path / "a.flac", tone(), 10_000_000)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("extension", FORMATS)
def test_a_full_disk_is_an_error_of_one_line_and_keeps_the_old_file(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a{extension}"
    path.write_bytes(b"old")
    code = f"""
import resource
from pathlib import Path
import numpy as np
import soundfile, soxr
from voxport.bundle.errors import VoxportError
from voxport.runtime.audio.files import write_audio
noise = np.random.default_rng(0).uniform(-0.5, 0.5, 24000).astype(np.float32)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_audio(Path({str(path)!r}), noise, 24000)
except VoxportError as fault:
    print(fault)
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{path}: cannot be written: File too large; raise the limit" in done.stdout
    assert done.stdout.count("\n") == 1
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


@given(st.lists(st.integers(-32767, 32767)))
def test_every_level_of_pcm16_is_read_back(levels: list[int]) -> None:
    samples = (np.array(levels, dtype=np.float64) / 32767).astype(np.float32)
    assert np.frombuffer(pcm16(samples), dtype="<i2").tolist() == levels


def test_pcm16_is_little_endian_clipped_and_rounds_half_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5], np.float64) / 32767
    assert pcm16(halves) == bytes([0, 0, 2, 0, 2, 0])
    assert pcm16(np.array([5.0, -5.0, 258 / 32767], np.float32)) == bytes([0xFF, 0x7F, 0x01, 0x80, 2, 1])
