"""Qwen3-ASR at its limits: text that does not fit, ends of segments, and pieces without a language."""

import io
import json
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
from support.export.cache import ExportCache
from support.export.golden_qwen3_asr import exported
from support.runtime.recordings import sentences, write_recording
from support.serve.http_server import wait_until

from voxport.__main__ import main
from voxport.runtime.audio.turns import TurnSettings, turns_of
from voxport.runtime.engines.onnx import OnnxEngine
from voxport.runtime.families.qwen3_asr.aligned import AlignedSpeechToText
from voxport.runtime.families.qwen3_asr.answer import Answer
from voxport.runtime.families.qwen3_asr.encoder import SoundEncoder
from voxport.runtime.families.qwen3_asr.recogniser import Recogniser
from voxport.runtime.families.qwen3_asr.splitting import Samples
from voxport.runtime.families.qwen3_asr.text import LONGEST_UNIT, TAG
from voxport.runtime.families.qwen3_asr.transcriptions import Segment
from voxport.runtime.families.qwen3_asr.words import as_written
from voxport.runtime.opening import open_task
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models, open_bundles
from voxport.runtime.speech_to_text import (
    SpeechToText,
)


@pytest.fixture(scope="module")
def recogniser(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> SpeechToText:
    return open_task(SpeechToText, exported(exports, "asr", tmp_path_factory.mktemp("bundles")))


def test_sound_that_grows_is_copied_few_times() -> None:
    sound, samples, memories = np.arange(5000, dtype=np.float32), Samples(), list[Any]()
    for block in np.split(sound, range(7, len(sound), 7)):
        samples.add(block)
        memories.append(samples.all.base)
    assert np.array_equal(samples.all, sound) and len({id(memory) for memory in memories}) < 12


@pytest.mark.parametrize(
    ("words", "text", "written"),
    [
        ("会議 は 1 2 時 から です", "会議は１２時からです。", "会議 は １ ２ 時 から です。"),  # noqa: RUF001
        ("テスト デスト", "ﾃｽﾄ、ﾃﾞｽﾄ", "ﾃｽﾄ、 ﾃﾞｽﾄ"),
        ("株 東京", "㈱東京", "㈱ 東京"),
        ("Istanbul 平成 元年", "İstanbul ㍻元年", "İstanbul ㍻ 元年"),
        ("Foo tom", "Foo™ tom", "Foo™ tom"),
        ("x b", "a b", "a b"),
    ],
)
def test_words_that_a_package_normalized_stand_as_in_the_text(words: str, text: str, written: str) -> None:
    """The words are those of nagisa, which need not be installed."""
    assert as_written(words.split(), text) == written.split()


def noise(samples: int) -> list[np.ndarray]:
    """Blocks float32 [n] of a second each."""
    found = np.random.default_rng(0).standard_normal(samples, dtype=np.float32) / 20
    return np.split(found, range(16_000, samples, 16_000))


def test_a_live_stream_ends_soon_after_a_new_segment_began(recogniser: SpeechToText) -> None:
    """A segment has 20 s of 512 rows. The 100 samples behind it are too few for a window."""
    deltas = recogniser.transcribe(noise(20 * 16_000 + 100), live=True)
    assert "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("text", [" the dog and", " 0 1 2 3 4 5 6 7 8 9 0 2 4 6 8 1 3 5 7 9"])
def test_a_model_that_loops_ends(
    recogniser: SpeechToText,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
    live: bool,
) -> None:
    def looping(self: Recogniser, ids: Sequence[int], sound: np.ndarray) -> Iterator[int]:
        self.read(ids, sound)
        for count, token in enumerate(cycle(tokens), len(ids)):
            yield token
            if count == self._stream.capacity("decode_step"):
                return

    tokens = cast(Any, recogniser)._parts.tokenizer.encode(text)
    monkeypatch.setattr(Recogniser, "answer", looping)
    deltas = list(recogniser.transcribe(noise(45 * 16_000), live=live, language="en"))
    found = "".join(delta.text for delta in deltas).strip()
    assert found and "more tokens than speech has; the rest is cut" in caplog.text
    if not live and len(text) < LONGEST_UNIT:
        # once in each of three pieces with less than another behind it, and five times in a short rest
        assert len(found) <= (3 * 2 + 5) * len(text)


def test_a_language_with_many_tokens_keeps_its_end(
    recogniser: SpeechToText, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hindi has 15 tokens a second: a recording of 45 s is read in several pieces, and nothing is cut."""
    parts = cast(Any, recogniser)._parts

    def talkative(self: Recogniser, ids: Sequence[int], sound: np.ndarray) -> Iterator[int]:
        self.read(ids, sound)
        count = round(15 * len(sound) / 13)
        yield from [*parts.tokenizer.encode(" word" * count)[: count - 1], *parts.tokenizer.encode(" end")]

    monkeypatch.setattr(Recogniser, "answer", talkative)
    monkeypatch.setattr("voxport.runtime.families.qwen3_asr.answer.without_repetitions", lambda text: text)
    deltas = list(recogniser.transcribe(noise(45 * 16_000), language="en"))
    found = "".join(delta.text for delta in deltas)
    assert found.endswith(" end") and found.count(" end") == 4 and not caplog.messages


@pytest.mark.parametrize("options", [["--turns"], ["--turns", "--format", "json"], ["--format", "json"]])
def test_live_lines_of_a_model_without_times_of_words(
    exports: ExportCache,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
) -> None:
    """Two turns are two lines, with the times of the turns in json; without turns, json has lines of text."""
    asr = exported(exports, "asr", tmp_path)
    monkeypatch.setattr(Segment, "answer", lambda _, samples, kept: iter([f"{len(samples)} samples"]))
    samples = (sentences(2) * 32767).astype("<i2").tobytes()
    monkeypatch.setattr("voxport.cli.commands.transcribe.raw_stdin", lambda: io.BytesIO(samples))
    assert main(["transcribe", "-", "--live", "--bundle", str(asr), "--language", "en", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    if options == ["--turns"]:
        assert len(lines) == 2 and all(line.endswith(" samples") for line in lines)
        return
    found = [json.loads(line) for line in lines]
    if "--turns" in options:
        assert [each.keys() for each in found] == [{"text", "start", "end"}] * 2
        assert 0.7 < found[0]["start"] < 1 and 4 < found[0]["end"] < 4.5 < found[1]["start"] < found[1]["end"]
    else:
        assert found and all(each.keys() == {"text"} for each in found)


def test_encoded_windows_keep_no_other_features(recogniser: SpeechToText) -> None:
    parts = cast(Any, recogniser)._parts
    encoder = SoundEncoder(cast(Any, recogniser)._engine.stream(), parts.constants)
    mel = np.concatenate([np.zeros((300, parts.constants.n_mels), np.float32)] * 4)
    for end in (500, 900, 1200):
        encoder.encode(mel[:end])
    assert all(frames.base is None for frames, _ in encoder._windows)


def test_a_language_without_a_code_has_its_name() -> None:
    for name, language in (("German", "de"), ("Wu", "Wu"), ("None", "")):
        (delta,) = Answer().more(f"language {name}{TAG}text", is_final=True)
        assert delta.language == language


def test_json_has_a_language_when_nothing_is_said(
    exports: ExportCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asr = exported(exports, "asr", tmp_path)
    write_recording(recording := tmp_path / "silence.wav", np.zeros(16_000), 16_000)
    assert main(["transcribe", str(recording), "--bundle", str(asr), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["language"]) == ("", "")


def test_a_recording_without_speech_has_no_text_and_a_reason(
    exports: ExportCache,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Music, of which the model says so: it is trained to write that there is no language."""
    asr = exported(exports, "asr", tmp_path)
    places = np.arange(32_000) / 16_000
    music = np.mean([np.sin(2 * np.pi * pitch * places) for pitch in (262, 330, 392)], axis=0)
    write_recording(recording := tmp_path / "music.wav", music, 16_000)
    monkeypatch.setattr(Segment, "answer", lambda *_: iter([f"language None{TAG}"]))
    assert main(["transcribe", str(recording), "--bundle", str(asr), "--format", "json"]) == 0
    found = capsys.readouterr()
    content = json.loads(found.out)
    assert (content["text"], content["language"]) == ("", "")
    assert "no text: the model recognised no speech in 2.0 s of sound" in found.err


def test_a_server_is_ready_when_all_files_are_open(
    exports: ExportCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are removed afterwards are not missed, those of the aligner neither. The first run of a
    server may call none of them.
    """
    monkeypatch.setattr(OnnxEngine, "open_ahead", lambda *_: None)  # may be quick enough by luck
    folders = [exported(exports, kind, tmp_path) for kind in ("asr", "aligner")]
    tasks = open_bundles(folders)
    models = Models(tasks, Limits())
    with patch.object(Segment, "answer", lambda *_: iter([""])):
        models.start()
        wait_until(lambda: models.is_ready, 60)
    for file in (each for folder in folders for each in folder.glob("*.onnx*")):
        file.unlink()
    task = tasks["asr"]
    assert isinstance(task, AlignedSpeechToText)
    list(task.transcribe([sentences(1)]))
    assert task._aligner.align(sentences(1), "Hello.", "en").words
    models.drain(0)


def test_each_turn_of_live_sound_is_transcribed_alone(
    recogniser: SpeechToText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Segment, "answer", lambda _, samples, kept: iter([f"{len(samples)} samples"]))
    sound = sentences(2)
    blocks = np.split(sound, range(1280, len(sound), 1280))
    found = [
        (start, "".join(delta.text for delta in recogniser.transcribe(turn, live=True, language="en")))
        for start, turn in turns_of(blocks, TurnSettings())
    ]
    lengths_ms = (4224 - 768, 8160 - 4672)
    texts = [f"{16 * length} samples" for length in lengths_ms]
    assert found == list(zip((0.768, 4.672), texts, strict=True))
