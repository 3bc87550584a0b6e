"""What commands write: complete files under their names, partial ones beside them, nothing that they read."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.commands import error_line, say
from support.files import contents
from support.runtime.recordings import noise, repeated_sentence, write_recording

from voxport.cli.commands import say as say_command
from voxport.cli.terminal import Progress
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.audio.files import audio_writer, write_audio

Capture = pytest.CaptureFixture[str]


@pytest.fixture(params=[3])
def interrupted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The report of progress with this number is an interruption. Each frame of speech has a report."""
    reports: list[str] = []

    def update(progress: Progress, done: float, text: str) -> None:
        reports.append(text)
        if len(reports) == request.param:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "update", update)
    monkeypatch.setattr(say_command, "FILE_FRAMES", 1)
    yield


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "ogg", "pcm"])
@pytest.mark.usefixtures("interrupted")
def test_interrupted_speech_is_kept_beside_its_goal(
    bundles: Path, tmp_path: Path, capsys: Capture, ending: str
) -> None:
    out, partial = tmp_path / f"a.{ending}", tmp_path / f"a.partial.{ending}"
    out.write_text("an earlier result")
    assert say(bundles / "onnx", "Hello there.", "--max-frames", "20", out=out) == 130
    assert out.read_text() == "an earlier result" and {*tmp_path.iterdir()} == {partial, out}
    frames = partial.stat().st_size // 2 if ending == "pcm" else len(soundfile.read(partial)[0])
    assert 2 * 1920 <= frames <= 3 * 1920 + 2400  # codecs add silence
    assert f"s of speech are kept in {partial}" in capsys.readouterr().err


def test_pieces_make_the_same_file_as_the_whole(tmp_path: Path) -> None:
    sound = noise(2, 24000)[:, 0]
    for ending in ("wav", "flac", "mp3", "ogg", "pcm"):
        for rate in (24000, 23456):
            whole, pieces = tmp_path / f"whole.{ending}", tmp_path / f"pieces.{ending}"
            write_audio(whole, sound, rate)
            with audio_writer(pieces, rate) as writer:
                for piece in np.array_split(sound, 7):
                    writer.write(piece)
            if ending == "ogg":  # each stream has a random number
                np.testing.assert_allclose(soundfile.read(whole)[0], soundfile.read(pieces)[0], atol=2e-4)
            else:
                assert whole.read_bytes() == pieces.read_bytes(), (ending, rate)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["txt", "srt", "json"])
@pytest.mark.parametrize("interrupted", [20], indirect=True)
@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_transcript_is_kept_beside_its_goal(
    realtime_bundles: Path, tmp_path: Path, capsys: Capture, form: str
) -> None:
    recording = write_recording(tmp_path / "talk.wav", noise(30))
    out, partial = tmp_path / f"a.{form}", tmp_path / f"a.partial.{form}"
    command = ["transcribe", str(recording), "--bundle", str(realtime_bundles / "onnx"), "-o", str(out)]
    assert runtime(command) == 130
    assert partial.read_text() and not out.exists()
    assert f"are kept in {partial}" in capsys.readouterr().err


def test_an_output_in_the_bundle_or_over_an_input_is_refused_before_work(
    bundles: Path, realtime_bundles: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts, stt = str(bundles / "onnx"), str(realtime_bundles / "onnx")
    (tmp_path / "link").symlink_to(tts)
    recording = write_recording(tmp_path / "talk.wav", noise(1))
    (tmp_path / "same.wav").hardlink_to(recording)
    before = contents(bundles / "onnx")
    monkeypatch.chdir(tts)
    for command, reason in (
        (["say", "Hi.", "--bundle", tts, "-o", f"{tts}/a.wav"], "is in the bundle"),
        (["say", "Hi.", "--bundle", ".", "-o", "a.wav"], "is in the bundle"),
        (["say", "Hi.", "--bundle", ".", "-o", "-", "--voice", "nobody"], "nobody"),  # - is no file there
        (["say", "Hi.", "--bundle", tts, "-o", f"{tmp_path}/link/voices/a.wav"], "is in the bundle"),
        (["transcribe", str(recording), "--bundle", stt, "-o", f"{stt}/a.txt"], "is in the bundle"),
        (["transcribe", str(recording), "--bundle", stt, "-o", f"{tmp_path}/same.wav"], "is also read"),
        *(
            (
                ["transcribe", str(recording), "--bundle", stt, "-o", f"{tmp_path}/b{end}"],
                "name of a recording",
            )
            for end in (".wav", ".WMA", ".aiff", ".w64", ".mp4", ".mkv", ".oga")
        ),
        (["codec", "encode", str(recording), f"{tts}/a.npz", "--bundle", tts], "is in the bundle"),
        (["trace", tts, "--inputs", "a.npz", "-o", "-"], "--output -: is not stdout here"),
        (["evaluate", tts, "-o", "-"], "--output -: is not stdout here"),
        (["trace", tts, "--inputs", "a.npz", "-o", f"{tts}/b.npz"], "is in the bundle"),
    ):
        assert runtime(command) == 2
        assert reason in error_line(capsys), command
    assert contents(bundles / "onnx") == before


def test_a_stored_voice_is_replaced_only_on_request(
    qwen_bundles: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    first, second = (
        write_recording(tmp_path / f"{seconds}.wav", 0.5 * repeated_sentence(seconds, 24000), 24000)
        for seconds in (2, 3)
    )
    command = ["voice", "add", "anna", str(first), "--bundle", str(qwen_bundles / "onnx")]
    for more in ([], ["-o", str(tmp_path / "a.safetensors")]):
        assert runtime([*command, *more]) == 0
        path = Path(capsys.readouterr().out.split()[-1])
        before = hashlib.sha256(path.read_bytes()).digest()
        command[3] = str(second)
        assert runtime([*command, *more]) == 2
        line = error_line(capsys)
        assert f"--replace: {path} exists" in line and hashlib.sha256(path.read_bytes()).digest() == before
        assert runtime([*command, *more, "--replace"]) == 0
        assert hashlib.sha256(path.read_bytes()).digest() != before
        command[3] = str(first)
    assert os.listdir(path.parent)


def test_own_voices_are_listed_and_removed(
    qwen_bundles: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    bundle, sound = ["--bundle", str(qwen_bundles / "onnx")], tmp_path / "a.wav"
    write_recording(sound, 0.5 * repeated_sentence(2, 24000), 24000)
    for command in (
        ["voice", "add", *bundle, "anna", str(sound)],
        ["voice", "add", "Ben", *bundle, str(sound)],
    ):
        assert runtime(command) == 0
    anna, ben = map(Path, capsys.readouterr().out.split())
    assert runtime(["voice", "list"]) == 0
    assert capsys.readouterr().out.split() == ["Ben", str(ben), "anna", str(anna)]
    assert runtime(["voice", "list", *bundle]) == 0
    assert {"anna", "Ben"} <= set(capsys.readouterr().out.split())
    other = tmp_path / "data" / "voxport" / "voices" / "other" / "anna.safetensors"
    other.parent.mkdir()
    other.touch()
    for arguments, reason in (
        (["remove", "anna"], "several models have this name"),
        (["remove", "carl"], "there are: Ben, anna"),
        (["remove", "anna", "b.wav"], "expected the name of a voice"),
        (["remove"], "expected the name of a voice"),
        (["list", "anna"], "expected no name"),
        (["add", "anna", *bundle], "expected a name, and then a SOURCE"),
        (["add", "anna", str(sound)], "--bundle: a voice is made by a model"),
        (["list", "-o", "a.safetensors"], "makes no voice"),
    ):
        assert runtime(["voice", *arguments]) == 2
        assert reason in error_line(capsys), arguments
    assert runtime(["voice", "remove", "anna", *bundle]) == 0 and runtime(["voice", "remove", "ben"]) == 0
    assert not anna.exists() and not ben.exists() and other.exists()
