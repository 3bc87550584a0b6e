"""`transcribe`: several recordings, one channel of a recording, and captions of live sound."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import error_line
from support.runtime.recordings import RATE, noise, sentences, write_recording

from voxport.runtime import opening
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.families.voxtral_realtime.task import VoxtralSpeechToText

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def transcribe(realtime_bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command, in a folder with recordings."""
    monkeypatch.chdir(tmp_path)
    write_recording(Path("a.wav"), noise(2), RATE)
    write_recording(Path("b.wav"), noise(1), RATE)
    Path("bad.wav").write_bytes(b"RIFF")
    return ["transcribe", "--bundle", str(realtime_bundles / "onnx")]


def test_several_recordings_are_printed_below_their_names(
    transcribe: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    alone = []
    for name in ("a.wav", "b.wav"):
        assert runtime([*transcribe, name]) == 0
        alone.append(capsys.readouterr().out)
    opened, open_task = list[Any](), opening.open_task

    def counted(*given: Any) -> Any:
        opened.append(open_task(*given))
        return opened[-1]

    monkeypatch.setattr(opening, "open_task", counted)
    assert runtime([*transcribe, "a.wav", "b.wav"]) == 0
    assert capsys.readouterr().out == f"==> a.wav <==\n{alone[0]}==> b.wav <==\n{alone[1]}"
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("more", "names"),
    [
        (["a.wav", "b.wav", "-o", "out"], ["out/a.txt", "out/b.txt"]),
        (["a.wav", "b.wav", "-o", "new/out/", "--format", "srt"], ["new/out/a.srt", "new/out/b.srt"]),
        (["a.wav", "-o", "new/", "--format", "vtt"], ["new/a.vtt"]),
        (["a.wav", "-o", ".", "--format", "json"], ["a.json"]),
        (["a.wav", "-o", "res.v1/"], ["res.v1/a.txt"]),
        (["a.wav", "b.wav", "-o", "res.v2/"], ["res.v2/a.txt", "res.v2/b.txt"]),
        (["a.wav", "-o", "talk.log"], ["talk.log"]),
        (["a.wav", "./a.wav", "b.wav", "a.wav", "-o", "out"], ["out/a.txt", "out/b.txt"]),
        (["a.wav", "b.wav", "--format", "vtt"], ["a.vtt", "b.vtt"]),
        (["a.wav", "other/a.flac", "-o", "."], ["a.wav.txt", "a.flac.txt"]),
    ],
)
def test_a_folder_gets_a_file_for_each_recording(
    transcribe: list[str], capsys: Capture, more: list[str], names: list[str]
) -> None:
    Path("other").mkdir()
    write_recording(Path("other/a.flac"), noise(1), RATE)
    assert runtime([*transcribe, *more]) == 0
    assert capsys.readouterr().out.split() == names and all(map(Path.is_file, map(Path, names)))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["a.wav", "b.wav", "-o", "out.v1"], "one file for 2 recordings; name a folder"),
        (["a.wav", "b.wav", "-o", "-", "--format", "srt"], "srt is for one recording a file; give -o DIR"),
        (["a.wav", "b.wav", "-o", "-", "--format", "vtt"], "vtt is for one recording a file; give -o DIR"),
        (["a.wav", "other/a.wav", "-o", "out"], "a.wav and other/a.wav have the same name; transcribe them"),
        (["gone.wav", "other"], "gone.wav: no such file; expected a file of audio"),
    ],
)
def test_several_recordings_are_refused_before_the_bundle_is_opened(
    transcribe: list[str], capsys: Capture, more: list[str], says: str
) -> None:
    Path("other").mkdir()
    assert runtime(["transcribe", "--bundle", "missing", *more]) == 2
    assert says in error_line(capsys) and not Path("out").exists()


def test_an_error_of_a_recording_does_not_stop_the_others(transcribe: list[str], capsys: Capture) -> None:
    assert runtime([*transcribe, "bad.wav", "gone.wav", "b.wav", "-o", "out"]) == 2
    found = capsys.readouterr()
    assert found.out == "out/b.txt\n" and "bad.wav: cannot be read" in found.err
    assert "gone.wav: no such file" in found.err
    assert found.err.splitlines()[-1].startswith("voxport: error: 2 of 3 recordings")


def test_json_of_several_recordings_names_each(transcribe: list[str], capsys: Capture) -> None:
    Path("b.wav").rename(os.fsdecode(b"b\xff.wav"))
    names = ["a.wav", "bad.wav", os.fsdecode(b"b\xff.wav")]
    assert runtime([*transcribe, *names, "--format", "json", "-o", "-"]) == 2
    found, decoder = capsys.readouterr().out, json.JSONDecoder()
    first, end = decoder.raw_decode(found)
    second, _ = decoder.raw_decode(found[end:].lstrip())
    assert (first["recording"], second["recording"]) == ("a.wav", "b\ufffd.wav")


def test_the_blank_penalty_is_for_recordings_too(
    transcribe: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, begin = list[bool](), VoxtralSpeechToText.begin

    def recorded(task: Any, **options: Any) -> Any:
        given.append(options["blank_penalty"])
        return begin(task, **options)

    monkeypatch.setattr(VoxtralSpeechToText, "begin", recorded)
    assert runtime([*transcribe, "a.wav", "--blank-penalty"]) == 0 and given == [True]


def test_a_channel_is_transcribed_alone(transcribe: list[str], capsys: Capture) -> None:
    left, right = noise(2), noise(2)[::-1]
    write_recording(Path("left.wav"), left, RATE)
    write_recording(Path("both.wav"), np.hstack((right, left)), RATE)
    texts = []
    for more in (["left.wav"], ["both.wav", "--channel", "2"], ["both.wav", "--channel", "1"], ["both.wav"]):
        assert runtime([*transcribe, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0] not in texts[2:]


@pytest.mark.parametrize("turns", [[], ["--turns"]])
@pytest.mark.parametrize(("style", "mark"), [("srt", ","), ("vtt", ".")])
def test_live_sound_has_captions(
    transcribe: list[str],
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    style: str,
    mark: str,
    turns: list[str],
) -> None:
    samples = io.BytesIO((sentences(2) * 32767).astype("<i2").tobytes())
    monkeypatch.setattr("voxport.cli.commands.transcribe.raw_stdin", lambda: samples)
    assert runtime([*transcribe, "-", "--live", "--format", style, *turns]) == 0
    blocks = capsys.readouterr().out.rstrip("\n").split("\n\n")
    if style == "vtt":
        assert blocks.pop(0) == "WEBVTT"
    else:
        assert [block.partition("\n")[0] for block in blocks] == [str(n + 1) for n in range(len(blocks))]
    times = [line for block in blocks for line in block.splitlines() if " --> " in line]
    assert len(times) == len(blocks) >= 2 and times == sorted(times) and times[0][8] == mark
