"""An aligner beside recognisers, at its limits, and what it says of its times."""

import json
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack, cast
from unittest.mock import patch

import numpy as np
import pytest
from support.export.cache import ExportCache
from support.export.golden_qwen3_asr import FOLDER, exported
from support.runtime.recordings import sentences, write_recording

from voxport.__main__ import main
from voxport.bundle.errors import UsageError
from voxport.cli.commands.transcribe import _check_task
from voxport.model.qwen3_asr.config import Options
from voxport.model.qwen3_asr.family import FAMILY
from voxport.runtime.audio.captions import Word, timed_fields
from voxport.runtime.families.qwen3_asr.aligned import AlignedSpeechToText
from voxport.runtime.families.qwen3_asr.encoder import SoundEncoder
from voxport.runtime.families.qwen3_asr.task import QwenSpeechToText
from voxport.runtime.forced_alignment import Alignment, ForcedAlignment
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import (
    SpeechToText,
    TranscriptDelta,
    Transcription,
    TranscriptionOptions,
)


@pytest.fixture(scope="module")
def aligner(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> ForcedAlignment:
    return open_task(ForcedAlignment, exported(exports, "aligner", tmp_path_factory.mktemp("bundles")))


class FixedText(SpeechToText):
    """A recogniser that answers one delta to each recording."""

    languages, sample_rate, delays_ms, max_chunk_tokens, max_live = ("en", "ko"), 16_000, (0,), 1, 1
    has_hints = True

    def __init__(self, *deltas: TranscriptDelta):
        self._deltas = iter(deltas)

    def check_live(self) -> None: ...

    def live_batch(self, slots: int) -> Any: ...

    def begin(self, **options: Unpack[TranscriptionOptions]) -> Transcription:
        return cast(Transcription, SimpleNamespace(feed=lambda _: [], finish=lambda: [next(self._deltas)]))


def test_words_that_do_not_fit_the_aligner_are_not_lost(
    aligner: ForcedAlignment, caplog: pytest.LogCaptureFixture
) -> None:
    text = "Hello, there. " * 100
    task = AlignedSpeechToText(FixedText(TranscriptDelta(text, [], "en")), aligner)
    found = list(task.transcribe([np.zeros(8 * 16_000, np.float32)]))
    assert "".join(delta.text for delta in found) == text and "spread evenly: text: with" in caplog.text
    words = [word for delta in found for word in delta.words]
    assert " ".join(word.text for word in words) == text.strip()
    assert words[0].start == 0 and words[-1] == Word("there.", 7.96, 8)


def test_an_aligner_times_the_words_of_voxtral_realtime(
    exports: ExportCache, realtime_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is that of the model alone. Its words, whose marks stand beside letters, have other times."""
    write_recording(recording := tmp_path / "noise.wav", noise := sentences(1), 16_000)
    command = ["transcribe", str(recording), "--bundle", str(realtime_bundles / "onnx"), "--gain", "off"]
    timed = [*command, "--format", "json", "--timestamps"]
    assert main(timed) == 0
    alone = json.loads(capsys.readouterr().out)
    folder = exported(exports, "aligner", tmp_path)
    assert main([*timed, "--aligner", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    words = open_task(ForcedAlignment, folder).align(noise.astype(np.float32), alone["text"], "en").words
    assert found["text"] == alone["text"] and len(words) > 1
    assert found["words"] == [timed_fields(word) for word in words] != alone["words"]
    out = tmp_path / "noise.TextGrid"
    assert main([*command, "--aligner", str(folder), "-o", str(out)]) == 0
    assert re.findall(r'text = "(.+)"', out.read_text()) == [word.text.replace('"', '""') for word in words]


def test_pieces_fit_the_aligner(aligner: ForcedAlignment) -> None:
    task = AlignedSpeechToText(FixedText(*[TranscriptDelta("Hello.", [], "en")] * 20), aligner)
    assert aligner.fitting_s == pytest.approx(13.8, abs=0.1)
    with patch.object(aligner, "align", return_value=Alignment([], 0, 0)) as align:
        list(task.transcribe([np.ones(60 * 16_000, np.float32)]))
    lengths = [len(call.args[0]) / 16_000 for call in align.call_args_list]
    assert sum(lengths) == pytest.approx(60, abs=0.5) and max(lengths) <= aligner.fitting_s


def test_an_aligner_keeps_the_text_of_180_s() -> None:
    config = FAMILY.layout.load_config(FOLDER / "aligner")
    assert FAMILY.default_cache(config, Options()) == 8192 == FAMILY.longest_cache(config)


def test_words_are_aligned_only_if_they_are_wanted_and_doubts_are_told(
    aligner: ForcedAlignment, caplog: pytest.LogCaptureFixture
) -> None:
    silence = np.zeros(16_000, np.float32)
    with patch.object(aligner, "align", return_value=Alignment([Word("a", 0, 1)], 0.1, 0.3)) as align:
        plain = AlignedSpeechToText(FixedText(TranscriptDelta("a", [], "hi")), aligner)
        assert "".join(delta.text for delta in plain.transcribe([silence], words=False)) == "a"
        assert not align.called and not caplog.messages
        timed = AlignedSpeechToText(FixedText(TranscriptDelta("a", [], "hi")), aligner)
        list(timed.transcribe([silence]))
    assert "words from 0 s on: 10 % of the times ran backwards, and the model gives" in caplog.text
    caplog.clear()
    for language in ("hi", "hi", "en"):
        aligner.align(silence, "a", language)
    (message,) = caplog.messages
    assert "language hi: the aligner was trained on" in message


def test_an_aligner_refuses_what_is_no_sound(aligner: ForcedAlignment) -> None:
    for samples, reason in (
        (np.zeros((16_000, 2), np.float32), r"a block of float32 \[16000, 2\]"),
        (np.full(16_000, np.nan, np.float32), "is not a finite number"),
    ):
        with pytest.raises(UsageError, match=reason):
            aligner.align(samples, "Hello.")


def test_a_piece_without_a_language_has_none_of_an_earlier_one(aligner: ForcedAlignment) -> None:
    deltas = [TranscriptDelta("a b", [], language) for language in ("ko", "", "")]
    with patch.object(aligner, "align", return_value=Alignment([], 0, 0)) as align:
        task = AlignedSpeechToText(FixedText(*deltas), aligner, piece_s=6)
        list(task.transcribe([np.concatenate((np.ones(96_000), np.zeros(112_000))).astype(np.float32)]))
    assert [call.args[2] for call in align.call_args_list][:2] == ["ko", ""]


def test_sound_is_not_encoded_for_a_text_that_does_not_fit(aligner: ForcedAlignment) -> None:
    with patch.object(SoundEncoder, "encode") as encode, pytest.raises(UsageError, match="has 619 rows"):
        aligner.align(np.zeros(16_000, np.float32), "Hello. " * 151)
    assert not encode.called


def test_language_of_an_aligner_is_no_hint_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    """A recogniser without hints and times of words, with an aligner to which the language gives rules."""
    task = FixedText()
    given = {"language": "en", "context": "names", "timestamps": True, "format": "json", "live": False}
    cast(Any, task).has_hints = False
    for aligner, named in ((Path("aligner"), "--context"), (None, "--language and --context")):
        _check_task(task, Namespace(**given, aligner=aligner))
        assert caplog.messages.pop() == f"{named}: has no effect on this model"
        caplog.clear()
    cast(Any, task).has_hints, task.ignored = True, ("chunk",)
    task.live_only = QwenSpeechToText.live_only
    for chunk, delay, named in ((2, 480, "--chunk and --delay-ms"), (1, None, "")):
        _check_task(task, Namespace(**given, aligner=None, chunk=chunk, delay_ms=delay))
        assert caplog.messages == ([f"{named}: has no effect on this model"] if named else [])
        caplog.clear()
