"""Speech to text from bundles, as a person uses it: files of every kind, live pipes, and what is wrong with them."""

import contextlib
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from runtime.__main__ import main as runtime
from runtime.captions import Word, as_srt, as_vtt, clock, cues
from runtime.errors import RuntimeFault, UsageError
from runtime.recording import LiveSource, Recording

RATE = 16000


def noise(seconds: float, rate: int = RATE, channels: int = 1, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal((round(seconds * rate), channels))).astype(np.float32)


def heard(path: Path, rate: int = RATE) -> np.ndarray:
    return np.concatenate(list(Recording(path, rate).blocks()))


def written(path: Path, samples: np.ndarray, rate: int = RATE, **more) -> Path:
    soundfile.write(path, samples, rate, **more)
    return path


# Files


@pytest.mark.parametrize(("name", "subtype"), [("8.wav", "PCM_U8"), ("24.wav", "PCM_24"), ("float.wav", "FLOAT"), ("a.flac", "PCM_16"), ("ulaw.wav", "ULAW")])
def test_every_width_is_heard(tmp_path, name, subtype):
    samples = noise(1)
    found = heard(written(tmp_path / name, samples, subtype=subtype))
    assert found.dtype == np.float32 and len(found) == RATE
    assert np.abs(found - samples[:, 0]).max() < {"PCM_U8": 0.01, "ULAW": 0.02}.get(subtype, 1e-4)


def test_channels_are_taken_together(tmp_path):
    samples = noise(1, channels=6)
    np.testing.assert_allclose(heard(written(tmp_path / "5.1.wav", samples, subtype="FLOAT")), samples.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 44100, 96000])
def test_every_rate_is_heard_as_a_whole(tmp_path, rate):
    """In blocks as in one piece: the resampler carries its state."""
    import soxr

    samples = noise(23.7, rate)
    found = heard(written(tmp_path / "a.wav", samples, rate, subtype="FLOAT"))
    expected = soxr.resample(samples[:, 0], rate, RATE, "HQ")
    assert abs(len(found) - len(expected)) <= 1
    np.testing.assert_allclose(found[: len(expected)], expected[: len(found)], atol=1e-5)


def test_an_hour_is_read_in_blocks(tmp_path):
    path = tmp_path / "hour.wav"
    with soundfile.SoundFile(path, "w", 8000, 1, "PCM_U8") as file:
        for _ in range(60):
            file.write(np.zeros(60 * 8000))
    sizes = [len(block) for block in Recording(path, RATE).blocks()]
    assert abs(sum(sizes) - 3600 * RATE) <= 1 and max(sizes) < 2 * RATE


def test_a_named_pipe_is_heard_like_a_file(tmp_path):
    whole, pipe = written(tmp_path / "a.wav", noise(1)), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(whole.read_bytes()))
    writer.start()
    np.testing.assert_array_equal(heard(pipe), heard(whole))
    writer.join()


def test_what_is_no_audio_is_refused(tmp_path):
    (tmp_path / "samples.raw").write_bytes(bytes(1000))
    with pytest.raises(UsageError, match="transcribe - --live"):
        Recording(tmp_path / "samples.raw", RATE)
    (tmp_path / "text.wav").write_text("this is a letter, not a sound\n" * 50)
    (tmp_path / "empty.wav").write_bytes(b"")
    written(tmp_path / "none.wav", np.zeros((0, 1), np.float32))
    for name, message in (("text.wav", "no audio that can be read"), ("empty.wav", "no audio"), ("none.wav", "no sample"), ("gone.wav", "no such file")):
        with pytest.raises(UsageError, match=message):
            Recording(tmp_path / name, RATE)
    with pytest.raises(UsageError, match="is a folder"):
        Recording(tmp_path, RATE)


def test_a_sample_that_is_no_number_is_named(tmp_path):
    samples = noise(2)
    samples[24000] = np.nan
    with pytest.raises(UsageError, match=r"sample at 1\.500 s is not a finite number"):
        heard(written(tmp_path / "nan.wav", samples, subtype="FLOAT"))


def test_odd_recordings_are_told_of(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    heard(written(tmp_path / "clipped.wav", np.sign(noise(1))))
    assert "at full scale: it is clipped" in caplog.text
    caplog.clear()
    heard(written(tmp_path / "loud.wav", 100 * noise(1), subtype="FLOAT"))
    assert "expected at most 1" in caplog.text
    caplog.clear()
    whole = written(tmp_path / "whole.flac", noise(10))
    cut = tmp_path / "cut.flac"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    found = heard(cut)
    assert 2 * RATE < len(found) < 8 * RATE and "cut.flac" in caplog.text and ("cut off" in caplog.text or "damaged" in caplog.text)
    caplog.clear()
    heard(written(tmp_path / "plain.wav", noise(1)))
    assert not caplog.text


# Live


def live(content: bytes, rate: int = RATE, channels: int = 1) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *LiveSource(io.BytesIO(content), rate, channels, RATE).blocks()])


def test_raw_samples_of_any_rate_and_number_of_channels():
    samples = (noise(2, 48000, 2) * 32767).astype("<i2")
    assert abs(len(live(samples.tobytes(), 48000, 2)) - 2 * RATE) <= 1
    plain = (noise(1) * 32767).astype("<i2")
    np.testing.assert_array_equal(live(plain.tobytes()), plain[:, 0].astype(np.float32) / 32768)


def test_a_pipe_that_closes_in_the_middle_of_a_sample(caplog):
    assert len(live(b"\x00\x00" * 100 + b"\x01")) == 100 and "1 byte left out" in caplog.text
    assert len(live(b"")) == 0


class Pipe(io.RawIOBase):
    """Sound without end, at once; counts what was taken of it."""

    def __init__(self, blocks: int):
        self.left = blocks

    def read(self, size: int = -1) -> bytes:
        self.left -= 1
        return bytes(size) if self.left >= 0 else b""


def until(condition) -> None:
    """Waits for another thread, at most ten seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < 10
        time.sleep(0.01)


def test_a_source_faster_than_its_listener_waits(caplog):
    pipe = Pipe(1000)
    blocks = LiveSource(pipe, RATE, 1, RATE, room_s=1.0).blocks()
    next(blocks)
    until(lambda: "the source waits" in caplog.text)
    assert pipe.left > 980  # the queue holds 12 blocks
    assert sum(map(len, blocks)) == 1280 * 999


def test_or_what_is_oldest_is_dropped_and_told(caplog):
    pipe = Pipe(1000)
    source = LiveSource(pipe, RATE, 1, RATE, room_s=1.0, drops=True)
    blocks = source.blocks()
    next(blocks)
    until(lambda: pipe.left < 0)
    rest = sum(map(len, blocks)) / RATE
    assert rest <= 1.1 and source.dropped_s + rest + 0.08 == pytest.approx(80)
    assert caplog.text.count("dropped so far") == 1  # at most one a second


def test_pieces_of_odd_sizes_stay_samples_when_some_are_dropped():
    class Steady(io.RawIOBase):
        """1,279 bytes of 1000, 1000, ... at a time."""

        def __init__(self):
            self.data, self.at = np.full(200_000, 1000, "<i2").tobytes(), 0

        def read(self, size: int = -1) -> bytes:
            piece = self.data[self.at : self.at + min(size, 1279)]
            self.at += len(piece)
            return piece

    source = LiveSource(Steady(), RATE, 2, RATE, room_s=0.3, drops=True)
    blocks = source.blocks()
    next(blocks)
    until(lambda: not source._thread.is_alive() or source.dropped_s > 1)
    assert all((block == np.float32(1000 / 32768)).all() for block in blocks)


def test_a_source_that_fails_is_an_error_not_a_silence():
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(RuntimeFault, match="Input/output error"):
        list(LiveSource(Broken(), RATE, 1, RATE).blocks())


def test_an_end_gives_what_was_read():
    pipe = Pipe(10**9)
    source = LiveSource(pipe, RATE, 1, RATE, room_s=1.0)
    blocks = source.blocks()
    next(blocks)
    until(source._queue.full)
    source.end()
    assert 12 * 1280 <= sum(map(len, blocks)) <= 14 * 1280
    until(lambda: not source._thread.is_alive())


def test_a_slow_source_is_waited_for():
    reader, writer = threading.Event(), []

    class Slow(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            reader.wait(0.05)
            writer.append(1)
            return b"\x00\x00" * 7 if len(writer) < 10 else b""

    assert sum(map(len, LiveSource(Slow(), RATE, 1, RATE).blocks())) == 9 * 7


# Captions

WORDS = [Word("Hello", 0.0, 0.4), Word("there.", 0.4, 0.8), Word("<b>", 1.0, 1.2), Word("late", 3.0, 3.2), Word("x" * 100, 3.3, 3.4), Word("y", 3.5, 11.0)]


def test_cues_end_with_sentences_pauses_and_lines():
    assert [cue.text for cue in cues(WORDS)] == ["Hello there.", "<b>", "late", "x" * 100, "y"]
    assert [(cue.start, cue.end) for cue in cues(WORDS)][:2] == [(0.0, 0.8), (1.0, 1.2)]


def test_subtitles_are_in_their_form():
    assert as_srt(WORDS[:3]) == "1\n00:00:00,000 --> 00:00:00,800\nHello there.\n\n2\n00:00:01,000 --> 00:00:01,200\n<b>\n"
    assert as_vtt(WORDS[2:3]) == "WEBVTT\n\n00:00:01.000 --> 00:00:01.200\n&lt;b&gt;\n"
    assert clock(3723.9996) == "01:02:04.000"
    assert as_srt([]) == "" and as_vtt([]) == "WEBVTT\n\n"


# Bundles

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("sound") / "talk.flac", noise(4, 44100, 2), 44100)


@slow
@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml"])
def test_a_recording_becomes_text_on_every_target(listening, recording, target, capsys):
    arguments = ["transcribe", str(recording), "--bundle", str(listening / target)]
    assert runtime([*arguments, "--format", "json", "--timestamps"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] == 4 and found["text"] and found["words"]
    starts = [word["start"] for word in found["words"]]
    assert starts == sorted(starts) and all(0 <= word["start"] < word["end"] <= 4 + 12 * 0.08 for word in found["words"])
    assert runtime(arguments) == 0
    assert capsys.readouterr().out.strip("\n") == found["text"].strip("\n")
    assert runtime([*arguments, "--delay-ms", "80"]) == 0
    assert capsys.readouterr().out.strip() != found["text"]


@slow
@pytest.mark.parametrize("form", ["text", "srt", "vtt", "json"])
def test_every_format_goes_to_a_file(listening, recording, tmp_path, form, monkeypatch, capsys):
    monkeypatch.setattr("runtime.__main__.TOLD_S", 0.0)
    out = tmp_path / f"out.{form}"
    assert runtime(["transcribe", str(recording), "--bundle", str(listening / "onnx"), "--format", form, "-o", str(out)]) == 0
    assert out.read_text() and ("-->" in out.read_text()) == (form in ("srt", "vtt"))
    assert "so far" in capsys.readouterr().err  # who waits for a file is told how far it is


@slow
@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_short_and_silent_recordings_are_no_errors(listening, tmp_path, seconds):
    path = written(tmp_path / "short.wav", np.zeros((round(seconds * RATE), 1), np.float32))
    assert runtime(["transcribe", str(path), "--bundle", str(listening / "onnx")]) == 0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "runtime", "transcribe", *map(str, arguments)]


@slow
def test_words_appear_while_one_speaks(listening):
    """Half of the sound is enough for a part of the text; the rest comes when the pipe closes."""
    samples = (noise(6) * 32767).astype("<i2").tobytes()
    process = subprocess.Popen(command("-", "--bundle", listening / "onnx", "--live"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    process.stdin.write(samples[: len(samples) // 2])
    process.stdin.flush()
    early = process.stdout.read1(100)  # comes although the pipe is open
    rest, _ = process.communicate(samples[len(samples) // 2 :], timeout=60)
    assert early and process.returncode == 0
    done = subprocess.run(command("-", "--bundle", listening / "onnx", "--live"), input=samples, capture_output=True, check=True)
    assert early + rest == done.stdout


@slow
@pytest.mark.parametrize("ending", ["interrupted", "nobody reads"])
def test_a_live_stream_that_is_left_ends_well(listening, ending):
    """While the source is still open and silent."""
    samples = (noise(3) * 32767).astype("<i2").tobytes()
    process = subprocess.Popen(command("-", "--bundle", listening / "onnx", "--live"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(samples)
    process.stdin.flush()
    early = process.stdout.read1(100)
    if ending == "interrupted":
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0 and early + process.stdout.read() and b"interrupted" not in process.stderr.read()
    else:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            for _ in range(200):
                process.stdin.write(samples)
        assert process.wait(60) == 0 and b"Fatal" not in process.stderr.read()


@slow
def test_live_words_as_lines(listening):
    samples = (noise(4) * 32767).astype("<i2").tobytes()
    done = subprocess.run(command("-", "--bundle", listening / "onnx", "--live", "--format", "json"), input=samples, capture_output=True, check=True)
    words = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert words and all(word.keys() == {"word", "start", "end"} for word in words)


@slow
def test_a_recording_from_a_pipe(listening, recording):
    whole = subprocess.run(command(recording, "--bundle", listening / "onnx"), capture_output=True, check=True).stdout
    done = subprocess.run(command("-", "--bundle", listening / "onnx"), input=recording.read_bytes(), capture_output=True, check=True)
    assert done.stdout == whole


@slow
def test_what_does_not_go_together_is_told(listening, bundles, recording, tmp_path, capsys):
    onnx = ["--bundle", str(listening / "onnx")]
    cases = [
        ([str(recording), *onnx, "--live"], "--live listens to stdin"),
        (["-", *onnx, "--live", "--format", "srt"], "--live writes text or json"),
        ([str(recording), *onnx, "--rate", "8000"], "a file says it itself"),
        (["-", *onnx, "--live", "--channels", "0"], "--channels 0: expected 1 to 64"),
        ([str(recording), *onnx, "--late", "drop"], "--late is for --live"),
        ([str(recording), *onnx, "--format", "srt", "--timestamps"], "srt has times anyway"),
        ([str(recording), *onnx, "--delay-ms", "960"], "this bundle was made for 480, 80 ms"),
        ([str(recording), "--bundle", str(bundles / "onnx")], "of family 'voxtral_tts'; this command is for voxtral_realtime"),
        ([str(tmp_path / "gone.wav"), *onnx], "no such file"),
    ]
    for arguments, message in cases:
        assert runtime(["transcribe", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert runtime(["say", "hello", *onnx, "-o", str(tmp_path / "a.wav")]) == 2
    assert "this command is for voxtral_tts" in capsys.readouterr().err


@slow
def test_a_bundle_for_recordings_does_not_listen(listening, tmp_path, capsys):
    bundle = Path(shutil.copytree(listening / "onnx", tmp_path / "bundle"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["components"] = [entry for entry in manifest["components"] if entry["name"] != "encode_chunk"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert runtime(["transcribe", "-", "--bundle", str(bundle), "--live"]) == 2
    assert "export with --streaming" in capsys.readouterr().err


@slow
def test_a_live_step_is_timed(listening, capsys):
    assert runtime(["bench", str(listening / "onnx"), "--frames", "5", "--chunks", "2", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    calls = {name: row["calls"] for name, row in found["components"].items() if row["per_frame"]}
    assert calls == {"encode_chunk": 5, "embed_tokens": 5, "decode_step": 5}
    assert found["streams"][0]["chunks"] == 2 and found["streams"][0]["added_delay_ms"] == 80 and found["first_token_s"] > 0
    assert runtime(["bench", str(listening / "onnx"), "--frames", "2"]) == 0
    assert "first token" in capsys.readouterr().out
