"""Results are written whole or not at all; devices, pipes and links are not replaced."""

import os
import stat
import threading
from pathlib import Path

import pytest

from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.files import check_writable, partial_path, write_whole

CONTENT = bytes(range(256)) * 4096  # 1 MB, more than a pipe takes at once


def test_a_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(0o640)
    before = path.stat().st_ino
    write_whole(path, CONTENT)
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and path.stat().st_ino != before
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    target, link = tmp_path / "inner" / "target", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"new", b"newer"):
        check_writable(link)
        write_whole(link, content)
        assert link.is_symlink() and target.read_bytes() == content


def test_a_link_to_a_missing_folder_or_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere" / "file")
    with pytest.raises(UsageError, match="does not exist"):
        check_writable(tmp_path / "lost")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match="leads to itself"):
        write_whole(tmp_path / "loop", b"x")
    assert (tmp_path / "loop").is_symlink()


def test_a_pipe_is_written_to_in_place(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    check_writable(pipe)
    write_whole(pipe, CONTENT)
    reader.join(10)
    assert read == [CONTENT] and stat.S_ISFIFO(pipe.lstat().st_mode)


def test_an_open_file_is_continued(tmp_path: Path) -> None:
    """As `-o /dev/stdout >> log`."""
    log = tmp_path / "log"
    log.write_text("before ")
    with log.open("a") as file:
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{file.fileno()}")
        for path in (Path(f"/proc/self/fd/{file.fileno()}"), tmp_path / "link"):
            check_writable(path)
            write_whole(path, b"new ")
    assert log.read_text() == "before new new "


def test_the_descriptor_of_a_pipe_is_written_to() -> None:
    reading, writing = os.pipe()
    write_whole(Path(f"/proc/self/fd/{writing}"), b"new")
    assert os.read(reading, 10) == b"new"


def test_a_file_that_may_not_be_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda where, mode: Path(where) != path)  # root may write everything
    with pytest.raises(UsageError, match="cannot be written to"):
        check_writable(path)
    with pytest.raises(VoxportError, match="read-only"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["out"]


def null_device(folder: Path) -> Path:
    device = folder / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"this user cannot make or open a device node here ({error.strerror})")
    return device


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    device = null_device(tmp_path)
    check_writable(device)
    write_whole(device, CONTENT)
    assert stat.S_ISCHR(device.lstat().st_mode) and os.listdir(tmp_path) == ["null"]


def test_a_folder_and_a_failed_write_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(VoxportError, match="cannot be written: Is a directory; name another place"):
        write_whole(tmp_path, b"x")
    assert not os.listdir(tmp_path)


def test_a_partial_result_replaces_no_earlier_one_and_its_name_fits(tmp_path: Path) -> None:
    assert partial_path(tmp_path / "a.b.wav") == tmp_path / "a.b.partial.wav"
    for name in ("a.partial.wav", "a.partial-2.wav"):
        assert partial_path(tmp_path / "a.wav") == tmp_path / name
        (tmp_path / name).touch()
    partial_path(tmp_path / f"{'ä' * 125}.wav").touch()
