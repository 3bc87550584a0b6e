"""Recordings of browsers, phones and video; recordings that end too early; decoders that fail."""

import re
import wave
from io import BytesIO, FileIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.runtime.media import MEDIA, media
from support.runtime.recordings import RATE, noise

from voxport.bundle.errors import UsageError
from voxport.runtime.audio import media as media_module
from voxport.runtime.audio import media_decoder, opening
from voxport.runtime.audio.media import DamagedSound, MediaFile
from voxport.runtime.audio.sources import Recording

HERTZ, SECONDS = 440, 1.5
TONE = (0.4 * np.sin(2 * np.pi * HERTZ * np.arange(SECONDS * RATE) / RATE)).astype(np.float32)
LIBSNDFILE = {  # container: encoding
    "WAV": "PCM_16",
    "WAVEX": "PCM_24",
    "RF64": "PCM_16",
    "W64": "PCM_16",
    "AIFF": "PCM_16",
    "AU": "PCM_16",
    "CAF": "PCM_16",
    "FLAC": "PCM_16",
    "OGG": "VORBIS",
    "MP3": "MPEG_LAYER_III",
}
CANNOT_TELL = {"ts"}  # packets without a length of the whole


def read(path: Path) -> tuple[Recording, np.ndarray]:
    recording = Recording(path, RATE)
    recording.peak_dbfs()
    return recording, np.concatenate(list(recording.blocks()))


@pytest.mark.parametrize("name", MEDIA)
def test_recordings_of_browsers_and_phones_are_read(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording.wav"  # the name does not matter
    path.write_bytes(media(name, TONE, RATE))
    recording, samples = read(path)
    recording.check_whole()
    assert len(samples) / RATE == pytest.approx(SECONDS, abs=0.08)  # two frames of an encoder
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    assert spectrum.argmax() * RATE / len(samples) == pytest.approx(HERTZ, abs=2)
    assert recording.level.peak() == pytest.approx(0.4, abs=0.15)
    lines = capfd.readouterr().err.splitlines()  # another test may have set up the log
    assert all("has no sound above 4 kHz" in line for line in lines)


def contents(name: str) -> bytes:
    if name in MEDIA:
        return media(name, TONE, RATE)
    file = BytesIO()
    soundfile.write(file, noise(SECONDS), RATE, format=name, subtype=LIBSNDFILE[name])
    return file.getvalue()


@pytest.mark.parametrize("kept", [0.4, 0.93])
@pytest.mark.parametrize("name", [*LIBSNDFILE, *(each for each in MEDIA if each not in CANNOT_TELL)])
def test_a_truncated_recording_is_refused(name: str, kept: float, tmp_path: Path) -> None:
    path, content = tmp_path / "a.bin", contents(name)
    path.write_bytes(content)
    read(path)[0].check_whole()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(UsageError, match=r"a\.bin: .*(truncated|damaged).*; "):
        read(path)[0].check_whole()


def test_without_pyav_the_tag_of_an_mp3_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    content, path = media("mp3", TONE, RATE), tmp_path / "a.mp3"
    path.write_bytes(content)
    read(path)[0].check_whole()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match="truncated after"):
        read(path)[0].check_whole()


def test_the_first_audio_track_of_a_video_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.mov"
    path.write_bytes(media("mov", TONE, RATE, video=True))
    assert len(read(path)[1]) / RATE == pytest.approx(SECONDS, abs=0.06)
    path.write_bytes(media("mkv", None, RATE, video=True))
    with pytest.raises(UsageError, match=r"it is WebM or Matroska, although it is called \.mov, without a"):
        Recording(path, RATE)


def test_a_silent_encoder_that_cannot_seek_is_read_to_its_end(tmp_path: Path) -> None:
    """`wave` and FFmpeg leave sizes of 0 or of 2 ** 32 - 1 in the header of a WAV in a pipe."""
    file = BytesIO()
    with wave.open(file, "wb") as output:
        output.setparams((1, 2, RATE, 0, "NONE", "NONE"))
        output.writeframes((TONE * 32767).astype("<i2").tobytes())
    for size in (bytes(4), b"\xff" * 4):
        content = bytearray(file.getvalue())
        content[40:44] = size
        (tmp_path / "a.wav").write_bytes(content)
        recording, samples = read(tmp_path / "a.wav")
        recording.check_whole()
        assert len(samples) == len(TONE)


DECODERS = {  # program of the child: what `read_block` says
    "import os, sys; print('[8000, 1, null]', flush=True); os.write(1, bytes(80)); os.abort()": "damaged",
    "print('[8000, 1, null]', flush=True); raise MemoryError": "damaged",
    "import sys; print('[8000, 1, null]', flush=True); print('bad', file=sys.stderr); sys.exit(3)": "bad",
}


@pytest.mark.parametrize("program", DECODERS)
def test_a_decoder_that_crashes_is_a_damaged_recording(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "decoder.py").write_text(program)
    monkeypatch.setattr(media_module, "DECODER", tmp_path / "decoder.py")
    with (tmp_path / "decoder.py").open("rb") as source, pytest.raises(DamagedSound, match=DECODERS[program]):
        file = MediaFile(source)
        while len(file.read_block(20)):
            pass


@pytest.mark.parametrize(
    "change",
    ["while True: pass", "open('/dev/null')", "bytes(2 ** 31)"],
    ids=["without an answer", "opens a file", "takes memory"],
)
def test_a_decoder_has_limits(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the decoder, which has one second, and does something before it reads."""
    program = media_module.DECODER.read_text()
    assert "STALLED_S, CPU_S = 30," in program and program.count("    _limit()\n") == 1
    program = program.replace("STALLED_S, CPU_S = 30,", "STALLED_S, CPU_S = 1,")
    (tmp_path / "decoder.py").write_text(program.replace("    _limit()\n", f"    _limit()\n    {change}\n"))
    monkeypatch.setattr(media_module, "DECODER", tmp_path / "decoder.py")
    path = tmp_path / "a.webm"
    path.write_bytes(media("webm", TONE, RATE))
    with pytest.raises(UsageError, match="damaged"):
        Recording(path, RATE)


def test_a_forgotten_recording_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "a.webm"
    path.write_bytes(media("webm", np.tile(TONE, 20), RATE))
    before = children_of_this_process()
    recording = Recording(path, RATE)
    assert children_of_this_process() > before
    blocks = recording.blocks()
    next(blocks)
    del recording, blocks
    assert children_of_this_process() == before


def children_of_this_process() -> set[str]:
    listed = (path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    return {number for each in listed for number in re.findall(r"\d+", each)}


def test_streams_of_an_ogg_behind_each_other_are_read(tmp_path: Path) -> None:
    """As radio stations send them."""
    path = tmp_path / "chained.ogg"
    path.write_bytes(2 * contents("OGG"))
    assert len(read(path)[1]) / RATE == pytest.approx(2 * SECONDS, abs=0.06)
    path.write_bytes(2 * media("ogg of Firefox", TONE, RATE))
    assert len(read(path)[1]) / RATE == pytest.approx(2 * SECONDS, abs=0.06)


@pytest.mark.parametrize(("place", "rest"), [(-5, b"sound"), (2**62, b"")])
def test_a_seek_out_of_a_damaged_file_ends_in_it(tmp_path: Path, place: int, rest: bytes) -> None:
    """Behind the end nothing is read: with the start in its place, some files were read for ever."""
    (file := tmp_path / "sound").write_bytes(b"sound")
    with media_decoder._Source(FileIO(file)) as source:
        source.seek(place)
        assert source.read() == rest
