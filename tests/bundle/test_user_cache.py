"""The user's cache folder is private or not used, and the stored rows of voices take a bounded size."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bundle.manifest import MANIFEST
from bundle.user_cache import private_folder
from runtime import prefix_cache
from runtime.prefix_cache import PrefixCache

ROWS = {"cache": np.ones((1, 5, 2), np.float32)}
SHAPES = {"cache": (1, 5, 2)}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "voxport"


def prompt(voice: int) -> bytes:
    return np.full((2, 4), voice, np.float32).tobytes()


def cache(tmp_path) -> PrefixCache:
    (tmp_path / MANIFEST).write_text("{}")
    return PrefixCache(SimpleNamespace(folder=tmp_path), "toy")


def test_the_folder_is_private(home):
    assert private_folder("one") == home / "one"
    assert {path.stat().st_mode & 0o777 for path in (home, home / "one")} == {0o700}


def test_a_folder_that_others_could_write_is_not_used(tmp_path, home):
    (home / "prefixes").mkdir(parents=True)
    (home / "prefixes").chmod(0o777)
    with pytest.raises(PermissionError, match="prefixes"):
        private_folder("prefixes")
    cache(tmp_path).save(prompt(1), ROWS)
    assert not list((home / "prefixes").iterdir())


def test_the_folder_around_it_becomes_private(home):
    home.mkdir()
    home.chmod(0o775)
    private_folder("prefixes")
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_link_is_not_followed(tmp_path, home):
    home.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.symlink(tmp_path / "elsewhere", home / "prefixes")
    with pytest.raises(PermissionError, match="link"):
        private_folder("prefixes")


def test_the_files_that_were_not_used_for_longest_make_room(tmp_path, home, monkeypatch):
    stored = cache(tmp_path)
    stored.save(prompt(0), ROWS)
    (first,) = (home / "prefixes").iterdir()
    monkeypatch.setattr(prefix_cache, "MAX_BYTES", 3 * first.stat().st_size)
    for voice in (1, 2):
        stored.save(prompt(voice), ROWS)
    for age, path in enumerate((home / "prefixes").iterdir()):
        os.utime(path, (age, age))
    os.utime(first, (0, 0))
    assert cache(tmp_path).load(prompt(0), SHAPES) is not None  # used now, though made first
    stored.save(prompt(3), ROWS)
    found = [cache(tmp_path).load(prompt(voice), SHAPES) is not None for voice in range(4)]
    assert found[0] and found[3] and sum(found) == 3


def test_rows_of_other_shapes_are_not_loaded(tmp_path, caplog):
    cache(tmp_path).save(prompt(0), ROWS)
    assert cache(tmp_path).load(prompt(0), {"cache": (1, 6, 2)}) is None
    assert "computed again" in caplog.text


def test_a_pipe_in_place_of_rows_is_replaced(tmp_path, home):
    cache(tmp_path).save(prompt(0), ROWS)
    (path,) = (home / "prefixes").iterdir()
    path.unlink()
    os.mkfifo(path)
    stored = cache(tmp_path)
    assert stored.load(prompt(0), SHAPES) is None
    stored.save(prompt(0), ROWS)
    assert path.is_file() and cache(tmp_path).load(prompt(0), SHAPES) is not None
