"""Opening a bundle: read once, and a tokenizer only where the family needs one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.stand_ins import noting, stand_in

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import MANIFEST
from voxport.runtime import opening
from voxport.runtime.families import tokenizer_paths
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech


class Task(SpeechToText):
    sample_rate, delays_ms, max_chunk_tokens, max_live = 100, (), 1, 1

    def check_live(self) -> None: ...

    def begin(self, *arguments: Any, **options: Any) -> Any: ...

    def live_batch(self, slots: int) -> Any: ...


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was opened or parsed, in order, of a bundle without a tokenizer."""
    calls = []
    manifest = stand_in(tokenizer=(), verification=stand_in(status="unverified"))
    bundle = stand_in(
        job=stand_in(family="toy", licence="own"), manifest=manifest, folder=tmp_path, is_verified=False
    )
    bundle.remarks = list
    family = stand_in(name="toy", task=SpeechToText, task_of=None)
    family.open = noting(
        lambda *_: Task(), lambda bundle, engine, constants: calls.append(f"task with {constants}")
    )

    def log(name: str, result: object) -> Callable[..., object]:
        return noting(lambda *_: result, lambda *_: calls.append(name))

    monkeypatch.setattr(opening, "Bundle", log("bundle", bundle))
    monkeypatch.setattr(opening, "open_family", lambda name: family)
    monkeypatch.setattr(opening, "read_constants", log("constants", "constants"))
    monkeypatch.setattr(opening, "check_hashes_once", log("hashes", None))
    monkeypatch.setattr(opening, "check_engine", log("trial", None))
    monkeypatch.setattr(opening, "open_engine", log("engine", None))
    return calls


def test_a_bundle_is_read_once_and_its_constants_are_parsed_once(
    opened: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(opening.open_task(SpeechToText, tmp_path), Task)
    assert opened == ["bundle", "constants", "hashes", "trial", "engine", "task with constants"]
    assert f"{tmp_path}: this bundle is unverified" in caplog.text


def test_a_bundle_for_another_task_is_refused_before_its_hashes_are_computed(
    opened: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is a bundle for speech to text, expected one for text to speech"):
        opening.open_task(TextToSpeech, tmp_path)
    assert opened == ["bundle"]


def test_a_family_that_reads_or_writes_text_refuses_a_bundle_without_a_tokenizer(tmp_path: Path) -> None:
    bundle = stand_in(manifest=stand_in(tokenizer=()), folder=tmp_path)
    with pytest.raises(UsageError, match="the bundle has no tokenizer; export from a checkpoint"):
        tokenizer_paths(bundle)


def test_an_installed_bundle_is_found_by_its_task_and_no_other_is_read(
    bundles: Path, realtime_bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "PACKAGED", tmp_path)
    listener, speaker = tmp_path / "voxtral-realtime-tiny", tmp_path / "voxtral-tts-tiny"
    shutil.copytree(realtime_bundles / "onnx", listener)
    with pytest.raises(UsageError, match="no bundle for text to speech; run `make wheel`"):
        opening.open_embedded(TextToSpeech)
    shutil.copytree(bundles / "onnx", speaker)
    (listener / MANIFEST).write_text("{}")
    assert opening.packaged_bundle(TextToSpeech) == speaker
    assert isinstance(opening.open_embedded(TextToSpeech), TextToSpeech)
    with pytest.raises(IntegrityError, match="voxtral-realtime-tiny"):
        opening.open_embedded(SpeechToText)
