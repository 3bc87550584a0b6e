"""The output folder of an export: what replaces a bundle, and what is never removed."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.commands import error_line
from support.files import contents

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import MANIFEST
from voxport.export import staging as output_folder
from voxport.export.__main__ import main as export
from voxport.export.staging import bundle_files, check_output, staging

Files = dict[str, str]
OLD = {"a.onnx": "old", "voices/x.safetensors": "old", "README.md": "old", "gone.mlpackage/Data/w": "old"}
NEW = {"a.onnx": "new", "b/c.onnx": "new", "README.md": "new"}


def write(folder: Path, files: Files) -> None:
    """`files`, and a manifest that lists them."""
    entries = {name: {"sha256": hashlib.sha256(text.encode()).hexdigest()} for name, text in files.items()}
    job = {"family": "toy", "target": "onnx"}
    manifest = {MANIFEST: json.dumps({"schema_version": 1, "job": job, "files": entries})}
    for name, text in (files | manifest).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def export_to(out: Path) -> None:
    with staging(out) as folder:
        write(folder, NEW)


def texts(folder: Path) -> Files:
    return {name: content.decode() for name, content in contents(folder).items() if name != MANIFEST}


Place = Callable[[Path], None]


def renamed(out: Path) -> None: ...


def current(out: Path) -> None:
    os.chdir(out)


@pytest.fixture(autouse=True)
def _stays_here() -> Iterator[None]:
    here = os.getcwd()
    yield
    os.chdir(here)


@pytest.mark.parametrize("place", [renamed, current])
def test_only_files_of_the_old_bundle_are_replaced(tmp_path: Path, place: Place) -> None:
    out = tmp_path / "out"
    write(out, OLD)
    foreign = {
        "LICENSE": "mine",
        ".git/config": "mine",
        "notes/deep/a.txt": "mine",
        "voices/mine.txt": "mine",
    }
    for name, text in foreign.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    (out / "empty").mkdir()
    inode = out.stat().st_ino
    place(out)
    export_to(out)
    assert texts(out) == NEW | foreign and (out / "empty").is_dir()
    assert not (out / "gone.mlpackage").exists() and os.listdir(tmp_path) == ["out"]
    assert (out.stat().st_ino == inode) == (place is current)
    assert json.loads((out / MANIFEST).read_text())["files"].keys() == NEW.keys()


@pytest.mark.parametrize("place", [renamed, current])
def test_foreign_files_in_the_way_are_set_aside(
    tmp_path: Path, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    write(out, OLD)
    (out / "README.md").write_text("edited")
    (out / "b").write_text("a file where the new bundle has a folder")
    (out / "other.onnx").write_text("an engine could read it")
    (out / "link").symlink_to("/etc")
    place(out)
    export_to(out)
    aside = {"README.md": "edited", "b": "a file where the new bundle has a folder"}
    aside |= {"other.onnx": "an engine could read it"}
    assert texts(out) == NEW | {f".kept-1/{name}": text for name, text in aside.items()}
    assert (out / ".kept-1" / "link").readlink() == Path("/etc")
    assert sum("is not of the bundle; moved to" in record.message for record in caplog.records) == 4
    (out / "README.md").write_text("edited again")
    export_to(out)
    assert (out / ".kept-2" / "README.md").read_text() == "edited again"
    assert (out / ".kept-1" / "README.md").read_text() == "edited"


def test_a_link_in_a_manifest_leads_to_nothing_that_is_removed(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    write(out, {"inner/a.onnx": "x", "../other/b": "x"} | OLD)
    (out / "inner" / "a.onnx").unlink()
    (out / "inner").rmdir()
    (out / "inner").symlink_to(other)
    (other / "a.onnx").write_text("mine")
    export_to(out)
    assert (other / "a.onnx").read_text() == "mine" and (other / "b").read_text() == "x"


def test_a_folder_that_is_no_bundle_is_refused_with_the_names_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("thesis.txt", *"abcdef"):
        (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    assert export(["--target", "onnx", "--quant", "w8", "--out", str(tmp_path), "--force"]) == 2
    assert "is no bundle: it has a, b, c, d, e and 2 more; nothing there is replaced" in error_line(capsys)
    assert contents(tmp_path) == before
    (tmp_path / "several" / "coreml").mkdir(parents=True)
    (tmp_path / "several" / "coreml" / "thesis.txt").write_text("mine")
    assert export(["--target", "onnx,coreml", "--out", str(tmp_path / "several")]) == 2  # before the first
    assert "coreml: is no bundle: it has thesis.txt" in error_line(capsys)
    assert os.listdir(tmp_path / "several") == ["coreml"]
    with pytest.raises(UsageError, match="is a file, expected a folder"):
        check_output(tmp_path / "a")


DATASET = '{"schema_version": "1.0", "files": {"thesis.txt": {"sha256": ""}}}'  # of another program


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"files": {}}', '{"job": 1, "files": 3}', "\xff", DATASET]
)
def test_another_manifest_makes_no_bundle(tmp_path: Path, manifest: str) -> None:
    (tmp_path / MANIFEST).write_text(manifest)
    assert bundle_files(tmp_path) == set()
    with pytest.raises(UsageError, match=r"is no bundle: it has manifest\.json"):
        check_output(tmp_path)


def test_hidden_files_do_not_make_a_folder_full(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".git").mkdir(parents=True)
    (out / ".git" / "config").write_text("mine")
    (out / "lost+found").mkdir()
    check_output(out)
    export_to(out)
    assert texts(out) == NEW | {".git/config": "mine"}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ["_carry_over", "move_into", "_remove", None])
def test_what_a_killed_export_left_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    out, old = tmp_path / "out", tmp_path / f".out{output_folder.OLD}"
    write(out, OLD)
    (out / "LICENSE").write_text("mine")
    if name is None:  # between the two renames
        out.rename(old)
    else:

        def die(*given: object) -> None:
            raise Killed

        monkeypatch.setattr(output_folder, name, die)
        with suppress(Killed):
            export_to(out)
        monkeypatch.undo()
        assert old.exists()
    export_to(out)
    assert texts(out) == NEW | {"LICENSE": "mine"} and os.listdir(tmp_path) == ["out"]


def test_folders_of_people_beside_the_output_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, OLD)
    for name in (".out.old", ".out.partial", f".out{output_folder.OLD}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("mine")
    (out / ".partial").mkdir()
    (out / ".partial" / "movie").write_text("mine")
    with pytest.raises(UsageError, match="voxport-old: is in the way of the export"):
        export_to(out)
    assert len(contents(tmp_path)) == len(OLD) + 5
    (tmp_path / f".out{output_folder.OLD}").rename(tmp_path / "elsewhere")
    export_to(out)
    assert (tmp_path / "elsewhere" / "thesis.txt").exists() and (out / ".partial" / "movie").exists()
    assert (tmp_path / ".out.old" / "thesis.txt").exists() and (tmp_path / ".out.partial").exists()


def test_a_manifest_that_names_a_folder_removes_nothing_in_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, OLD | {"sub": "x"})
    (out / "sub").unlink()
    (out / "sub").mkdir()
    (out / "sub" / "thesis.txt").write_text("mine")
    export_to(out)
    assert (out / "sub" / "thesis.txt").read_text() == "mine" and os.listdir(tmp_path) == ["out"]


def test_a_place_that_cannot_hold_a_folder_is_refused_before_work(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    for place, message in (
        (tmp_path / "plain" / "x", "plain: is a file, expected a folder"),
        (tmp_path / ("x" * 300), "File name too long; give a shorter name"),
    ):
        with pytest.raises(UsageError, match=message):
            check_output(place)
