"""Hashes are compared once, until a file changes."""

import os
import time
from pathlib import Path

import pytest

from voxport.bundle import manifest, passed_checks
from voxport.bundle.errors import IntegrityError
from voxport.bundle.manifest import MANIFEST, Bundle
from voxport.bundle.passed_checks import check_hashes_once


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the files whose hashes were computed. The cache is the test's own, and files count at once."""
    names, file_entry = list[str](), manifest.file_entry

    def noted(path: Path) -> manifest.FileEntry:
        names.append(path.name)
        return file_entry(path)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(manifest, "file_entry", noted)
    monkeypatch.setattr(passed_checks, "SETTLED_NS", 0)
    return names


def test_unchanged_files_are_read_once(onnx_copy: Path, read_files: list[str]) -> None:
    check_hashes_once(Bundle(onnx_copy))
    assert set(read_files) == {Path(name).name for name in Bundle(onnx_copy).engine_files}
    read_files.clear()
    check_hashes_once(Bundle(onnx_copy))
    assert not read_files
    (onnx_copy / "config.json").write_text("{}")  # no file of the bundle, but an engine could read it
    with pytest.raises(IntegrityError, match="is not in the manifest"):
        check_hashes_once(Bundle(onnx_copy))


def test_a_check_belongs_to_the_manifest_that_was_compared(onnx_copy: Path, read_files: list[str]) -> None:
    """Not to the one that is in the folder meanwhile."""
    bundle, path = Bundle(onnx_copy), onnx_copy / MANIFEST
    name, entry = next(iter(bundle.engine_files.items()))
    path.write_text(path.read_text().replace(entry.sha256, "0" * 64))
    check_hashes_once(bundle)
    with pytest.raises(IntegrityError, match=f"{name}: its bytes differ"):
        check_hashes_once(Bundle(onnx_copy))


def test_the_oldest_marks_are_removed(
    onnx_copy: Path, read_files: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(passed_checks, "MAX_MARKS", 2)
    for second in range(3):
        os.utime(next(onnx_copy.glob("*.data")), (second, second))
        check_hashes_once(Bundle(onnx_copy))
    assert len(list((tmp_path / "cache" / "voxport" / "hashed").iterdir())) == 2


@pytest.mark.parametrize("how", ["written", "replaced"])
def test_a_changed_file_is_read_again(onnx_copy: Path, read_files: list[str], how: str) -> None:
    """Even if size and time of change are the old ones."""
    check_hashes_once(Bundle(onnx_copy))
    path = next(onnx_copy.glob("*.data"))
    old, damaged = path.stat(), path.read_bytes()[:-1] + b"\x7f"
    time.sleep(0.02)  # the time of a change has steps of some ms
    if how == "replaced":
        path.unlink()
    path.write_bytes(damaged)
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    with pytest.raises(IntegrityError, match="differ from the manifest's hash"):
        check_hashes_once(Bundle(onnx_copy))


def test_a_check_of_files_that_changed_just_now_is_not_remembered(
    onnx_copy: Path, read_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_checks, "SETTLED_NS", 3600 * 10**9)
    check_hashes_once(Bundle(onnx_copy))
    read_files.clear()
    check_hashes_once(Bundle(onnx_copy))
    assert read_files


def test_without_a_cache_folder_every_file_is_read(
    onnx_copy: Path, read_files: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        read_files.clear()
        check_hashes_once(Bundle(onnx_copy))
        assert read_files
