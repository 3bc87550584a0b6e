"""The bundles of embedded models: exported once, and again for another checkpoint."""

import shutil

import pytest

from export import embedded_bundle as module
from export.embedded_bundle import embedded_bundle
from model.synthetic.checkpoint import random_checkpoint
from runtime.opening import open_task
from runtime.speech_to_text import SpeechToText

pytestmark = pytest.mark.slow


def test_it_is_exported_once_and_again_for_another_checkpoint(brief, tmp_path, monkeypatch, caplog):
    first = embedded_bundle("voxtral_realtime")
    assert first.name == "voxtral-realtime-tiny", "the name of the model for clients of a server"
    assert open_task(SpeechToText, first).delays_ms
    written = first.stat().st_mtime_ns
    caplog.clear()
    assert embedded_bundle("voxtral_realtime") == first
    assert first.stat().st_mtime_ns == written and not caplog.records

    other = shutil.copytree(random_checkpoint("voxtral_realtime"), tmp_path / "other")
    (other / "notes.txt").write_text("trained again")
    monkeypatch.setattr(module, "embedded_default", lambda family: other)
    monkeypatch.setattr(module, "_export", lambda checkpoint, folder: folder.mkdir(parents=True))
    again = embedded_bundle("voxtral_realtime")
    assert again != first and again.name == first.name


def test_a_cache_folder_that_others_may_write_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "voxport" / "bundles"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(module.VoxportError, match=r"others may write to it; remove it; give --bundle"):
        embedded_bundle("voxtral_realtime")
