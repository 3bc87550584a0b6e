"""Speech to text from bundles, with the command line."""

import contextlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.runtime.opened_tasks import open_recogniser
from support.runtime.recordings import RATE, noise, sentences, write_recording

from voxport.__main__ import main as voxport
from voxport.bundle.errors import UsageError, VoxportError
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.engines.base import Arrays, EngineOptions
from voxport.runtime.engines.onnx import OnnxStream
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import LiveStream, SpeechToText

Capture = pytest.CaptureFixture[str]
RUN_ACTIVE = OnnxStream.run_active


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recording(tmp_path_factory.mktemp("sound") / "talk.flac", noise(4, 44100, 2), 44100)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml", "coreai"])
def test_a_recording_is_transcribed_on_every_target(
    realtime_bundles: Path, recording: Path, target: str, capsys: Capture
) -> None:
    arguments = ["transcribe", str(recording), "--bundle", str(realtime_bundles / target)]
    assert runtime([*arguments, "--format", "json", "--timestamps"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] == 4 and found["text"] and found["words"]
    starts = [word["start"] for word in found["words"]]
    assert starts == sorted(starts)
    assert all(0 <= word["start"] < word["end"] <= 4 for word in found["words"])
    assert runtime(arguments) == 0
    assert capsys.readouterr().out.strip("\n") == found["text"].strip("\n")
    assert runtime([*arguments, "--delay-ms", "80"]) == 0  # the last delay, as for a recording by default
    assert capsys.readouterr().out.strip("\n") == found["text"].strip("\n")
    assert runtime([*arguments, "--delay-ms", "480"]) == 0
    assert capsys.readouterr().out.strip() != found["text"]


@pytest.mark.parametrize(
    ("name", "begins"), [("out.text", ""), ("out.srt", "1\n00:00:"), ("out.VTT", "WEBVTT"), ("out.json", "{")]
)
def test_the_extension_of_the_output_file_selects_the_format(
    realtime_bundles: Path,
    recording: Path,
    tmp_path: Path,
    name: str,
    begins: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setattr("voxport.cli.terminal.LINE_INTERVAL_S", 0.0)
    arguments = ["transcribe", str(recording), "--bundle", str(realtime_bundles / "onnx")]
    assert runtime([*arguments, "-o", str(tmp_path / name)]) == 0
    found = (tmp_path / name).read_text()
    assert found.startswith(begins) and ("-->" in found) == (name in ("out.srt", "out.VTT"))
    assert "so far" in capsys.readouterr().err  # progress, because the text goes to a file


@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_short_and_silent_recordings_are_no_errors(
    realtime_bundles: Path, tmp_path: Path, seconds: float
) -> None:
    path = write_recording(tmp_path / "short.wav", np.zeros((round(seconds * RATE), 1), np.float32))
    assert runtime(["transcribe", str(path), "--bundle", str(realtime_bundles / "onnx")]) == 0


def test_a_truncated_recording_is_transcribed_on_demand(
    realtime_bundles: Path, recording: Path, tmp_path: Path, capsys: Capture
) -> None:
    content = recording.read_bytes()
    path = tmp_path / "cut.wav"
    path.write_bytes(content[: len(content) * 2 // 3])
    command = ["transcribe", str(path), "--bundle", str(realtime_bundles / "onnx")]
    assert runtime(command) == 2
    found = capsys.readouterr()
    assert (
        re.search(r"cut\.wav: (truncated|damaged) after", found.err)
        and "--partial" in found.err
        and not found.out
    )
    assert runtime([*command, "--partial"]) == 0
    assert "the text is of the part before" in capsys.readouterr().err


SAMPLES = (noise(6) * 32767).astype("<i2").tobytes()


def command(bundle: Path, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "voxport", "transcribe", *map(str, arguments), "--bundle", str(bundle)]


def printed(bundle: Path, *arguments: object, stdin: bytes = SAMPLES) -> bytes:
    return subprocess.run(command(bundle, *arguments), input=stdin, capture_output=True, check=True).stdout


def test_words_are_printed_before_the_live_input_ends(realtime_bundles: Path) -> None:
    """Half of the samples give some text. The rest is printed when the pipe closes."""
    live = command(realtime_bundles / "onnx", "-", "--live")
    process = subprocess.Popen(live, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    process.stdin.write(SAMPLES[: len(SAMPLES) // 2])
    process.stdin.flush()
    early = cast(io.BufferedReader, process.stdout).read1(100)  # printed while the pipe is open
    rest, _ = process.communicate(SAMPLES[len(SAMPLES) // 2 :], timeout=60)
    assert early and process.returncode == 0
    assert early + rest == printed(realtime_bundles / "onnx", "-", "--live")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, "closed stdout"])
def test_a_live_stream_ends_without_error_on_a_signal_or_a_closed_pipe(
    realtime_bundles: Path, ending: signal.Signals | str
) -> None:
    """The source is still open and sends nothing."""
    bundle, samples = realtime_bundles / "onnx", SAMPLES[: len(SAMPLES) // 2]
    live, pipe = command(bundle, "-", "--live"), subprocess.PIPE
    process = subprocess.Popen(live, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(samples)
    process.stdin.flush()
    early = cast(io.BufferedReader, process.stdout).read1(100)
    if isinstance(ending, signal.Signals):
        process.send_signal(ending)
        assert process.wait(60) == 0 and b"interrupted" not in process.stderr.read()
        # the remaining text is written
        assert early + process.stdout.read() == printed(bundle, "-", "--live", stdin=samples)
    else:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            for _ in range(200):
                process.stdin.write(samples)
        assert process.wait(60) == 0 and b"Fatal" not in process.stderr.read()


def test_live_json_is_one_word_per_line(realtime_bundles: Path) -> None:
    lines = printed(realtime_bundles / "onnx", "-", "--live", "--format", "json").decode().splitlines()
    words = [json.loads(line) for line in lines]
    assert words and all(word.keys() == {"word", "start", "end"} for word in words)


@pytest.mark.parametrize("options", [[], ["--timestamps"], ["--format", "json"]])
def test_turns_of_live_sound_are_lines(realtime_bundles: Path, options: list[str]) -> None:
    samples = (sentences(2) * 32767).astype("<i2").tobytes()
    lines = printed(realtime_bundles / "onnx", "-", "--live", "--turns", *options, stdin=samples)
    assert len(lines.decode().splitlines()) == 2
    if options == ["--format", "json"]:
        starts = [json.loads(line)["start"] for line in lines.splitlines()]
        assert 0.7 < starts[0] < 4.3 and 4.6 < starts[1] < 8.3
    assert printed(realtime_bundles / "onnx", "-", "--live", "--turns", *options) == b"", "noise is no turn"


def test_a_recording_from_a_pipe_gives_the_same_text(realtime_bundles: Path, recording: Path) -> None:
    bundle = realtime_bundles / "onnx"
    assert printed(bundle, "-", stdin=recording.read_bytes()) == printed(bundle, recording)


@pytest.mark.parametrize(
    "block",
    [np.zeros((2, 5), np.float32), np.zeros(5, np.int16), np.float32(0), [0.0, 0.1]],
    ids=["2-D", "int16", "number", "list"],
)
def test_a_block_that_is_not_audio_is_refused(realtime_bundles: Path, block: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a NumPy array of float32 \[n\] in \[-1, 1\] at 16000 Hz"):
        list(open_recogniser(realtime_bundles / "onnx").transcribe([block]))


def test_conflicting_options_are_usage_errors(
    realtime_bundles: Path, bundles: Path, recording: Path, tmp_path: Path, capsys: Capture
) -> None:
    onnx = ["--bundle", str(realtime_bundles / "onnx")]
    cases = [
        ([str(recording), *onnx, "--live"], "--live reads stdin"),
        (["-", *onnx, "--live", "-o", "live.srt"], "--live writes to stdout"),
        (["-", *onnx, "--live", "--channel", "1"], "--channel is for recordings"),
        ([str(recording), *onnx, "--channel", "3"], "talk.flac has 2; the first is 1"),
        ([str(recording), "-", *onnx], "- reads one recording"),
        ([str(recording), "b.wav", *onnx, "-o", "all.srt"], "one file for 2 recordings; name a folder"),
        ([str(recording), *onnx, "--rate", "8000"], "--rate needs --live"),
        (["-", *onnx, "--live", "--channels", "0"], "--channels: expected 1 to 64, found 0"),
        ([str(recording), *onnx, "--format", "srt", "--timestamps"], "srt always has times"),
        ([str(recording), *onnx, "--delay-ms", "960"], "this bundle has delays of 480, 80 ms"),
        (
            [str(recording), "--bundle", str(bundles / "onnx")],
            "is a bundle for text to speech, expected one for speech to text",
        ),
        ([str(tmp_path / "gone.wav"), *onnx], "no such file"),
        ([str(recording), *onnx, "--gain", "-200"], "--gain -200: expected auto, off, or -60 to 60 dB"),
        ([str(recording), *onnx, "--gain", "loud"], "--gain loud: expected auto"),
        (["-", *onnx, "--live", "--partial"], "--partial is for recordings"),
        (["-", *onnx, "--live", "--gain", "auto"], "--gain: auto measures a whole recording"),
    ]
    for arguments, message in cases:
        assert runtime(["transcribe", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert runtime(["say", "hello", *onnx, "-o", str(tmp_path / "a.wav")]) == 2
    assert "is a bundle for speech to text, expected one for text to speech" in capsys.readouterr().err


def test_a_bundle_without_streaming_refuses_live_transcription(
    realtime_bundles: Path, tmp_path: Path, capsys: Capture
) -> None:
    bundle = Path(shutil.copytree(realtime_bundles / "onnx", tmp_path / "bundle"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["job"]["components"] = [
        entry for entry in manifest["job"]["components"] if entry["name"] != "encode_chunk"
    ]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert runtime(["transcribe", "-", "--bundle", str(bundle), "--live"]) == 2
    assert "export it with --streaming" in capsys.readouterr().err


def test_bench_times_a_live_step(realtime_bundles: Path, capsys: Capture) -> None:
    figures = ["--frames", "5", "--threads", "1", "--json"]
    assert runtime(["bench", str(realtime_bundles / "onnx"), *figures]) == 0
    found = json.loads(capsys.readouterr().out)
    calls = {name: row["calls"] for name, row in found["components"].items() if row["per_frame"]}
    assert calls == {"encode_chunk": 5, "embed_tokens": 5, "decode_step": 5}
    assert found["first_token_s"] > 0
    assert runtime(["bench", str(realtime_bundles / "onnx"), "--frames", "2"]) == 0
    assert "first token" in capsys.readouterr().out
    for option in ("--streams", "--prompt-tokens"):
        assert runtime(["bench", str(realtime_bundles / "onnx"), option, "4"]) == 2
        assert f"{option} does not apply to a bundle of voxtral_realtime" in capsys.readouterr().err


def test_a_missing_recording_is_named_before_a_bundle_is_opened(tmp_path: Path, capsys: Capture) -> None:
    """Also where the embedded model would be exported first."""
    assert voxport(["transcribe", str(tmp_path / "none.wav")]) == 2
    assert "none.wav: no such file" in capsys.readouterr().err
    assert runtime(["transcribe", str(tmp_path / "none.wav"), "--bundle", str(tmp_path / "no_bundle")]) == 2
    assert "none.wav: no such file" in capsys.readouterr().err


def raise_for_several(stream: OnnxStream, component: str, inputs: Arrays, active: Sequence[int]) -> Arrays:
    outputs = RUN_ACTIVE(stream, component, inputs, active)
    if len(active) > 1:
        raise VoxportError("planted")
    return outputs


@pytest.mark.parametrize("fails", [False, True])
def test_live_streams_in_one_batch_have_the_text_of_each_alone(
    realtime_bundles: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Three sounds at two delays. The middle one ends first, so the last one moves to its slot. If every call
    for several streams raises, after it has written their states, each stream has calls of its own.
    """
    if fails:
        monkeypatch.setattr(OnnxStream, "run_active", raise_for_several)
    task = open_task(SpeechToText, realtime_bundles / "onnx", EngineOptions(threads=1))
    block, sounds = 1280, [noise(1.6)[:, 0], noise(0.8)[::-1, 0].copy(), noise(2.4)[:, 0] / 3]
    delays = [task.delays_ms[index % 2] for index in range(3)]

    def text(deltas: Any) -> str:
        return "".join(delta.text for delta in deltas)

    expected = [
        text(task.transcribe([sound], delay_ms=delay, live=True))
        for sound, delay in zip(sounds, delays, strict=True)
    ]
    batch, found = task.live_batch(8), dict[LiveStream, Any]()
    streams = {
        batch.begin(delay_ms=delay): np.split(sound, range(block, len(sound), block))
        for sound, delay in zip(sounds, delays, strict=True)
    }
    order = list(streams)
    while streams:
        for stream, blocks in streams.items():
            if blocks and not stream.is_due:
                stream.feed(blocks.pop(0))
                if not blocks:
                    stream.finish()
        for stream, deltas in batch.step().items():
            found[stream] = found.get(stream, "") + text(deltas)
        for stream in [each for each, blocks in streams.items() if not blocks and not each.is_due]:
            batch.end(stream)
            del streams[stream]
    assert [found[stream] for stream in order] == expected and len(set(expected)) == 3
    assert task.max_live == 8 and expected[2]
