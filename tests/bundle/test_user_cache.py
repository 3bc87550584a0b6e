"""The user's cache folder is private or not used, and the stored rows of voices take a bounded size."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from support.runtime.prefix_caches import wait_until_written
from support.stand_ins import noting, stand_in

from voxport.bundle.errors import VoxportError
from voxport.bundle.manifest import MANIFEST
from voxport.bundle.user_cache import private_folder
from voxport.runtime import prefix_cache
from voxport.runtime.prefix_cache import PrefixCache

ROWS = {"cache": np.ones((1, 5, 2), np.float32)}
READ = prefix_cache._read


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "voxport"


def prompt(voice: int) -> bytes:
    return np.full((2, 4), voice, np.float32).tobytes()


def cache(tmp_path: Path) -> PrefixCache:
    (tmp_path / MANIFEST).write_text("{}")
    return PrefixCache(stand_in(folder=tmp_path), "toy")


def saved(stored: PrefixCache, prefix: bytes, rows: dict[str, np.ndarray]) -> None:
    stored.save(prefix, rows)
    wait_until_written()


def test_the_folder_is_private(home: Path) -> None:
    assert private_folder("one") == home / "one"
    assert {path.stat().st_mode & 0o777 for path in (home, home / "one")} == {0o700}


def test_a_folder_that_others_could_write_is_not_used(tmp_path: Path, home: Path) -> None:
    (home / "prefixes").mkdir(parents=True)
    (home / "prefixes").chmod(0o777)
    with pytest.raises(PermissionError, match="prefixes"):
        private_folder("prefixes")
    saved(cache(tmp_path), prompt(1), ROWS)
    assert not list((home / "prefixes").iterdir())


def test_the_folder_around_it_becomes_private(home: Path) -> None:
    home.mkdir()
    home.chmod(0o775)
    private_folder("prefixes")
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_link_is_not_followed(tmp_path: Path, home: Path) -> None:
    home.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.symlink(tmp_path / "elsewhere", home / "prefixes")
    with pytest.raises(PermissionError, match="link"):
        private_folder("prefixes")


def test_the_files_that_were_not_used_for_longest_make_room(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = cache(tmp_path)
    saved(stored, prompt(0), ROWS)
    (first,) = (home / "prefixes").iterdir()
    monkeypatch.setattr(prefix_cache, "MAX_BYTES", 3 * first.stat().st_size)
    for voice in (1, 2):
        saved(stored, prompt(voice), ROWS)
    for age, path in enumerate((home / "prefixes").iterdir()):
        os.utime(path, (age, age))
    os.utime(first, (0, 0))
    assert cache(tmp_path).load(prompt(0)) is not None  # used now, though made first
    saved(stored, prompt(3), ROWS)
    found = [cache(tmp_path).load(prompt(voice)) is not None for voice in range(4)]
    assert found[0] and found[3] and sum(found) == 3


def test_the_file_of_each_voice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for voice in (1, 2):
        saved(cache(tmp_path), prompt(voice), {"cache": ROWS["cache"] * voice})
    read = []
    monkeypatch.setattr(prefix_cache, "_read", noting(READ, lambda *rest: read.append(rest[0])))
    stored = cache(tmp_path)
    for voice in (1, 2) * 3:
        rows = stored.load(prompt(voice))
        assert rows
        np.testing.assert_array_equal(rows["cache"], voice)
    assert len(read) == len(set(read)) == 2


def test_the_rows_that_were_used_longest_ago_leave_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "MAX_MEMORY_BYTES", 2 * ROWS["cache"].nbytes)
    stored = cache(tmp_path)
    stored.keep(prompt(0), ROWS)
    stored.keep(prompt(1), ROWS)
    stored.load(prompt(0))
    stored.keep(prompt(2), ROWS)
    assert [stored.load(prompt(voice)) is not None for voice in range(3)] == [True, False, True]


def test_rows_that_are_only_kept_are_on_no_disk(tmp_path: Path, home: Path) -> None:
    stored = cache(tmp_path)
    stored.keep(prompt(0), ROWS)
    wait_until_written()
    assert stored.load(prompt(0)) is ROWS and not list((home / "prefixes").iterdir())


def test_rows_are_stored_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, gate = [], threading.Event()

    def write(path: Path, content: bytes) -> None:
        gate.wait(10)
        names.append(threading.current_thread().name)
        raise VoxportError("the disk is full")

    monkeypatch.setattr(prefix_cache, "write_whole", write)
    stored = cache(tmp_path)
    for voice in range(9):
        stored.save(prompt(voice), ROWS)
    assert stored.load(prompt(0)) is not None and not names
    gate.set()
    wait_until_written()
    assert len(names) == prefix_cache.MAX_UNWRITTEN and all("prefix-writer" in name for name in names)


def test_rows_that_cannot_be_stored_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(path: Path, content: bytes) -> None:
        raise VoxportError("the disk is full")

    monkeypatch.setattr(prefix_cache, "write_whole", write)
    saved(cache(tmp_path), prompt(0), ROWS)
    assert "not stored: the disk is full" in caplog.text


def test_a_pipe_in_place_of_rows_is_replaced(tmp_path: Path, home: Path) -> None:
    saved(cache(tmp_path), prompt(0), ROWS)
    (path,) = (home / "prefixes").iterdir()
    path.unlink()
    os.mkfifo(path)
    stored = cache(tmp_path)
    assert stored.load(prompt(0)) is None
    saved(stored, prompt(0), ROWS)
    assert path.is_file() and cache(tmp_path).load(prompt(0)) is not None
