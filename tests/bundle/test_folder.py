"""A bundle among the tools of people: edited files, files beside it, and the cache of a model hub."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from support.commands import error_line, say
from support.files import contents

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.runtime.__main__ import main as runtime


def hub_snapshot(bundle: Path, cache: Path, below: str = "") -> Path:
    """`bundle` as huggingface_hub stores a download: links to files that are named by their hash."""
    repository = cache / "models--me--TTS"
    snapshot = repository / "snapshots" / "a1b2" / below
    (repository / "blobs").mkdir(parents=True)
    for path in filter(Path.is_file, bundle.rglob("*")):
        blob = repository / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        link = snapshot / path.relative_to(bundle)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_files_for_people_may_differ(onnx_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = onnx_copy / "README.md"
    readme.write_bytes(readme.read_bytes().replace(b"\n", b"\r\n") + b"\r\nOur own licence.\r\n")
    for name in ("LICENSE", "NOTES.txt", ".gitattributes"):
        (onnx_copy / name).write_text("ours")
    Bundle(onnx_copy).check_hashes()
    assert runtime(["info", str(onnx_copy)]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: README.md was changed after the export",
        "note: LICENSE is not part of the bundle; nothing reads it",
        "note: NOTES.txt is not part of the bundle; nothing reads it",
    ]
    readme.unlink()
    assert Bundle(onnx_copy).remarks()[0] == "README.md is missing"
    (onnx_copy / "config.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"config\.json: is not in the manifest, and an engine could"):
        Bundle(onnx_copy).check_hashes()


@pytest.mark.parametrize("below", ["", "onnx/w8"])
def test_a_bundle_in_the_cache_of_a_hub_runs(bundles: Path, tmp_path: Path, below: str) -> None:
    snapshot = hub_snapshot(bundles / "onnx", tmp_path / "hub", below)
    assert runtime(["info", str(snapshot)]) == 0
    for name, folder in (("plain.wav", bundles / "onnx"), ("hub.wav", snapshot)):
        assert say(folder, "Hi.", out=tmp_path / name) == 0
    assert (tmp_path / "plain.wav").read_bytes() == (tmp_path / "hub.wav").read_bytes()


def test_links_are_those_of_a_repository_in_a_cache(bundles: Path, tmp_path: Path) -> None:
    """A folder of another name beside `blobs` is no cache of a hub."""
    snapshot = hub_snapshot(bundles / "onnx", tmp_path / "hub")
    (tmp_path / "hub" / "models--me--TTS").rename(tmp_path / "hub" / "TTS")
    with pytest.raises(IntegrityError, match="is a link that leads out of the bundle"):
        Bundle(tmp_path / "hub" / "TTS" / snapshot.relative_to(tmp_path / "hub" / "models--me--TTS"))


@pytest.mark.slow
@pytest.mark.usefixtures("short_verification")
@pytest.mark.parametrize("below", ["", "onnx/w8"])
def test_a_bundle_in_the_cache_of_a_hub_is_verified(bundles: Path, tmp_path: Path, below: str) -> None:
    snapshot = hub_snapshot(bundles / "onnx", tmp_path / "hub", below)
    before = contents(tmp_path / "hub")
    assert export(["verify", str(snapshot), "--steps", "3"]) == 0
    assert contents(tmp_path / "hub") == before, "nothing is written through a link"


def test_a_link_out_of_the_repository_of_the_hub_is_refused(bundles: Path, tmp_path: Path) -> None:
    snapshot = hub_snapshot(bundles / "onnx", tmp_path / "hub")
    (other := tmp_path / "hub" / "models--other" / "blobs").mkdir(parents=True)
    for target in (other / "a", tmp_path / "hub" / "models--me--TTS" / "refs"):
        target.write_bytes((snapshot / "tekken.json").read_bytes())
        (snapshot / "tekken.json").unlink()
        (snapshot / "tekken.json").symlink_to(target)
        with pytest.raises(IntegrityError, match=r"tekken\.json: is a link that leads out of the bundle"):
            Bundle(snapshot)


def test_a_path_that_is_not_utf_8_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert say(tmp_path / "b\udcff", out=tmp_path / "a.wav") == 2
    assert "is not UTF-8, and engines open no other; rename it" in error_line(capsys)


@pytest.mark.parametrize("name", ["manifest.json", "tekken.json", "codec.onnx", "codec.onnx.data"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(onnx_copy: Path, name: str) -> None:
    (onnx_copy / name).chmod(0)
    for folder in (onnx_copy, *onnx_copy.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o755)
    child = os.fork()
    if not child:  # pytest never sees the child
        is_named = False
        try:
            if os.getuid() == 0:  # may read everything
                os.setuid(65534)
            Bundle(onnx_copy)
        except UsageError as error:
            is_named = "cannot be read" in str(error) and "ermission denied" in str(error)
        finally:
            os._exit(0 if is_named else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
