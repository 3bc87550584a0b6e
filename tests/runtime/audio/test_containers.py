"""Files that libsndfile does not read are named by their content; WAV files without a length are read."""

import io
import os
import shlex
import struct
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.runtime.recordings import RATE, noise, write_recording

from voxport.bundle.errors import UsageError
from voxport.runtime.audio import opening
from voxport.runtime.audio.opening import source_of
from voxport.runtime.audio.sources import Recording

M4A = b"\0\0\0\x1cftypM4A \0\0\2\0M4A isomiso2" + bytes(500)
CONTAINERS = {
    "MP4, M4A": M4A,
    "WebM or Matroska": b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\1" + bytes(500),
    "AMR": b"#!AMR\n" + b"\xff" * 500,
    "ADTS AAC": b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(500),
    "3GP": b"\0\0\0\x14ftyp3gp4" + bytes(500),
    "WMA": bytes.fromhex("3026b2758e66cf11") + bytes(500),
    "AVI": b"RIFF\x24\1\0\0AVI LIST" + bytes(500),
    "Ogg": b"OggS\0\2" + bytes(22) + b"\1\x1eSpeex   " + bytes(500),
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("name", ["a.mp3", "a.wav", "a.bin", "a b.m4a"])
@pytest.mark.parametrize("has_pyav", [False, True])
def test_a_container_is_named_by_its_content(
    has_pyav: bool,
    kind: str,
    name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / name
    path.write_bytes(CONTAINERS[kind])
    if not has_pyav:
        monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"cannot be read as audio: it is {kind}") as caught:
        Recording(path, RATE)
    text = str(caught.value)
    assert ("although it is called .mp3" in text) == (name == "a.mp3")
    assert "\n" not in text and "pipe" not in text
    assert capfd.readouterr().err == ""  # libmpg123 writes there itself
    if has_pyav:
        assert "damaged" in text
    else:
        assert f"ffmpeg -i {shlex.quote(str(path))} OUT.wav" in text
        assert "pip install 'voxport[media]'" in text


@pytest.mark.parametrize("tag", [b"ID3\4\0\0\0\0\0\x0a" + bytes(10)])
def test_a_container_behind_a_tag_is_named(tag: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(tag + CONTAINERS["ADTS AAC"])
    with pytest.raises(UsageError, match="it is ADTS AAC"):
        Recording(tmp_path / "a.mp3", RATE)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"a letter, not a sound\n" * 100, "in no known format"),
        (b"fLaC" + bytes(90), "sample rate 0"),
    ],
)
@pytest.mark.parametrize("name", ["a.mp3", "a.wav"])
def test_what_is_not_sound_is_one_line(
    content: bytes, says: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=says):
        Recording(tmp_path / name, RATE)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("rate", [0, 2**32 - 1])
@pytest.mark.parametrize("kind", ["WAV", "AU", "RIFX"])
def test_an_impossible_rate_is_named(rate: int, kind: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    endian = {"endian": "BIG"} if kind == "RIFX" else {}
    soundfile.write(file, noise(0.1), RATE, format="AU" if kind == "AU" else "WAV", **endian)
    content = bytearray(file.getvalue())
    at, order = (16, ">I") if kind == "AU" else (24, ">I" if kind == "RIFX" else "<I")
    content[at : at + 4] = struct.pack(order, rate)
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(UsageError, match=f"sample rate {rate}, expected 1000 to 384000"):
        Recording(tmp_path / "a.wav", RATE)


@pytest.mark.parametrize("before", ["zeros", "a cut frame", "random bytes"])
def test_an_mp3_may_have_other_bytes_in_front(before: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    soundfile.write(file, noise(2), RATE, format="MP3", subtype="MPEG_LAYER_III")
    junk = {"zeros": bytes(5000), "a cut frame": b"", "random bytes": np.random.default_rng(0).bytes(3000)}
    (tmp_path / "a.mp3").write_bytes(junk[before] + file.getvalue()[1000 if not junk[before] else 0 :])
    assert sum(map(len, Recording(tmp_path / "a.mp3", RATE).blocks())) > RATE


def wav(
    riff: int | None, data: int | None, extra: bytes = b"", channels: int = 1
) -> tuple[bytes, np.ndarray]:
    """A WAV with other sizes, and its samples."""
    samples = np.rint(noise(1.5, channels=channels) * 32767).astype("<i2")
    sound = samples.tobytes()
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, channels, RATE, 2 * RATE * channels, 2 * channels, 16)
    data_size = len(sound) if data is None else data
    riff_size = len(head) + len(extra) + 8 + len(sound) if riff is None else riff
    content = b"RIFF" + struct.pack("<I", riff_size) + head + extra + b"data" + struct.pack("<I", data_size)
    return content + sound, samples.mean(axis=1) / 32768


LIST = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf60.16.100\0"
FULL, HUGE = None, 2**32 - 1
SIZES = [
    (0, 0),
    (8, 0),
    (36, 0),
    (FULL, 0),
    (HUGE, 0),
    (HUGE, HUGE),
    (0, HUGE),
    (0, FULL),
    (FULL, HUGE),
    (0x7FFFFFFF, 0x7FFFFFDB),
]


@pytest.mark.parametrize("extra", [b"", LIST], ids=["plain", "with a list"])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_wav_without_a_length_is_read_to_its_end(
    sizes: tuple[int | None, int | None], extra: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, expected = wav(*sizes, extra, channels=2)
    (tmp_path / "a.wav").write_bytes(content)
    recording = Recording(tmp_path / "a.wav", RATE)
    recording.peak_dbfs()
    np.testing.assert_allclose(np.concatenate(list(recording.blocks())), expected, atol=1e-6)
    assert "truncated" not in caplog.text


def test_a_wav_without_a_length_is_read_from_a_pipe(tmp_path: Path) -> None:
    content, expected = wav(0, 0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes(content)).start()
    np.testing.assert_allclose(np.concatenate(list(Recording(pipe, RATE).blocks())), expected, atol=1e-6)


def test_a_wav_whose_other_chunks_follow_no_data_is_empty(tmp_path: Path) -> None:
    content, _ = wav(None, 0)
    (tmp_path / "a.wav").write_bytes(content[:44] + LIST)
    with pytest.raises(UsageError, match="has no samples"):
        Recording(tmp_path / "a.wav", RATE)


def test_a_name_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.wav")
    write_recording(tmp_path / "a.wav", noise(1)).rename(path)
    assert sum(map(len, Recording(path, RATE).blocks())) == RATE
    path.write_bytes(M4A)
    with pytest.raises(UsageError, match="it is MP4"):
        Recording(path, RATE)


@pytest.mark.parametrize("extra", [b"", LIST, b"note" + struct.pack("<I", 4) + b"data"])
@pytest.mark.parametrize("riff", [FULL, 1036])
def test_samples_behind_the_length_of_a_wav_are_a_warning(
    riff: int | None, extra: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.wav").write_bytes(wav(riff, 1000, extra)[0])
    Recording(tmp_path / "a.wav", RATE)
    assert "its header names 1000 bytes of samples; 47000 bytes behind them are not read" in caplog.text


@pytest.mark.parametrize("behind", [LIST, bytes(512), b"TAG" + bytes(125), b"LIST" + LIST])
def test_tags_and_padding_behind_a_wav_are_not(
    behind: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.wav").write_bytes(wav(None, None)[0] + behind)
    Recording(tmp_path / "a.wav", RATE)
    assert not caplog.text


def test_a_file_is_closed_when_its_copy_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(0, 0)[0])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        source_of(tmp_path / "a.wav").close()
    assert not [each for each in found if "a.wav" in str(each.message)]


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
