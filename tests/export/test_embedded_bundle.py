"""The bundles of embedded models: exported once, and again where damaged or for another checkpoint."""

import shutil
from pathlib import Path

import pytest

from voxport.bundle.errors import VoxportError
from voxport.export import embedded_bundle as module
from voxport.export.embedded_bundle import embedded_bundle
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText

FAMILY = "voxtral_realtime"


@pytest.mark.slow
def test_it_is_exported_once_and_again_where_damaged_or_for_another_checkpoint(
    short_verification: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint = random_checkpoint(FAMILY)
    first = embedded_bundle(FAMILY, checkpoint)
    assert first.name == checkpoint.name, "the name of the model for clients of a server"
    task = open_task(SpeechToText, first)
    task.check_live()

    exported = list[tuple[Path, Path]]()
    monkeypatch.setattr(
        module, "_export", lambda checkpoint, _, folder: exported.append((checkpoint, folder))
    )
    caplog.clear()
    assert embedded_bundle(FAMILY, checkpoint) == first
    assert not exported and not caplog.records
    other = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    (other / "notes.txt").write_text("trained again")
    again = embedded_bundle(FAMILY, other)
    assert exported == [(other, again)] and again != first and again.name == first.name
    with (first / "tekken.json").open("ab") as file:
        file.write(b" ")
    assert embedded_bundle(FAMILY, checkpoint) == first
    assert exported[1:] == [(checkpoint, first)]
    assert "tekken.json" in caplog.text and "exported again" in caplog.text


def test_a_cache_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "voxport" / "bundles"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(VoxportError, match=r"others may write to it; remove it"):
        embedded_bundle(FAMILY, tmp_path)
