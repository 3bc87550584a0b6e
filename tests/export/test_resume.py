"""Exports that fail: what an interruption, a kill or an error leaves, and what the next run reuses."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.bundle_options import QUANT
from support.export.bundle_bytes import assert_same_bytes
from support.model.micro import micro_checkpoint
from support.paths import ROOT

from voxport.bundle.errors import ExportError, UsageError, VerificationError
from voxport.bundle.files import files_below
from voxport.bundle.manifest import Bundle, WeightError
from voxport.export import build
from voxport.export.__main__ import main as export
from voxport.export.model import Model
from voxport.export.staging import ResumeCache, staging
from voxport.export.targets.base import Target


@pytest.mark.parametrize("name", [".out.voxport-partial", ".out.voxport-old"])
def test_a_link_in_the_place_of_a_hidden_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").write_text("x")
    (tmp_path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match="is a link"), staging(tmp_path / "out") as folder:
        ResumeCache(folder)
    assert (tmp_path / "precious" / "thesis").exists()


def test_a_link_to_the_output_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with staging(tmp_path / "link") as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "out" / "file").exists()


def test_an_interruption_before_the_first_finished_graph_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> WeightError:
        (folder / "half.onnx").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), staging(tmp_path / "new" / "out") as folder:
        ResumeCache(folder).make("a", "key", interrupted)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_finished_graphs_or_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """The signal may come after the first graph: the export goes on while this process reads its line."""
    child = started(tmp_path / "new" / "out", how)
    assert child.stderr
    assert next(line for line in child.stderr if "lowering" in line)
    left = tmp_path / "new" / ".out.voxport-partial"
    assert left.exists()
    while child.poll() is None:  # again, as a user would: a callback of a library may swallow an exception
        child.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=20)
    assert child.returncode == 130
    child.stderr.close()
    if not left.exists():
        assert not list(tmp_path.iterdir())
        return
    assert [path.name for path in left.parent.iterdir()] == [left.name]
    record = json.loads((left / "resume.json").read_text())
    finished = {name for graph in record.values() for name in graph["files"]}
    assert set(files_below(left)) == {"resume.json", *finished} != {"resume.json"}


@pytest.mark.slow
def test_an_export_reuses_the_graphs_of_a_killed_export(bundles: Path, tmp_path: Path) -> None:
    """A run is killed after the third graph. One of the three is then damaged, and a partial file added, and
    a graph of another export to this folder.

    The other run has another hash seed and number of threads. The bundle of both has the bytes of one that
    was exported without interruption.
    """
    child = started(tmp_path / "out", signal.SIGINT, *QUANT, "--no-verify")
    assert child.stderr
    assert next(line for line in child.stderr if "backbone:" in line)
    child.kill()
    child.wait()
    child.stderr.close()
    left = tmp_path / ".out.voxport-partial"
    assert [path.name for path in tmp_path.iterdir()] == [left.name]
    ResumeCache(left).make("talker", "of another export", lower_to("talker.pte"))
    weights = left / "embed_text.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    (left / "half.onnx").write_text("half")
    written = (left / "backbone.onnx.data").stat().st_mtime_ns
    threads = str(1 + torch.get_num_threads())
    done = subprocess.run(
        command_of(tmp_path / "out", *QUANT, "--no-verify"),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": threads},
        check=True,
        capture_output=True,
        text=True,
    )
    reused = {
        line.split("]")[1].split(":")[0].strip(): "reused from an earlier export" in line
        for line in done.stderr.splitlines()
        if " MB" in line
    }
    assert reused == {
        "embed_text": False,
        "embed_codes": True,
        "backbone": True,
        "acoustic_step": False,
        "codec": False,
    }
    assert (tmp_path / "out" / "backbone.onnx.data").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    Bundle(tmp_path / "out").check_hashes()
    assert_same_bytes(bundles / "onnx", tmp_path / "out")


def lower_to(*names: str) -> Callable[[Path], WeightError]:
    """A fake lowering that writes these files, some of them in a folder."""

    def lower(folder: Path) -> WeightError:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        return WeightError(searched=0.1, min_max=0.2)

    return lower


def test_a_finished_graph_is_reused_only_with_the_same_key(tmp_path: Path) -> None:
    key, other = "made from w4", "made from w8"
    made = ResumeCache(tmp_path).make("a", key, lower_to("a.onnx", "a.mlpackage/weights"))
    cache = ResumeCache(tmp_path)
    assert cache.find("a", key) == made and sum(entry.size for entry in made.files.values()) == len(
        "a.onnx" + "a.mlpackage/weights"
    )
    assert cache.find("a", other) is None and cache.find("b", key) is None
    cache.make("a", other, lower_to("a.onnx"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.onnx",
        "resume.json",
    ]  # no file of the graph that it replaces
    (tmp_path / "a.onnx").unlink()
    assert ResumeCache(tmp_path).find("a", other) is None


def test_graphs_of_another_export_are_removed(tmp_path: Path) -> None:
    cache = ResumeCache(tmp_path)
    for name in "abc":
        cache.make(name, "key", lower_to(f"{name}.onnx"))
    cache.retain(["b", "d"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.onnx", "resume.json"]
    assert ResumeCache(tmp_path).find("b", "key") and not ResumeCache(tmp_path).find("a", "key")
    cache.retain(["d"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "record",
    ["{", "[]", '{"a": {}}', '{"a": {"key": "k", "files": {}, "weight_error": null, "more": 1}}'],
)
def test_a_damaged_resume_record_is_ignored(tmp_path: Path, record: str) -> None:
    (tmp_path / "resume.json").write_text(record)
    (tmp_path / "a.onnx").write_text("unrecorded")
    assert ResumeCache(tmp_path).find("a", "k") is None and not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_finished_graphs(tmp_path: Path) -> None:
    with (
        pytest.raises(ExportError, match="full; free space or name another place"),
        staging(tmp_path / "out") as folder,
    ):
        ResumeCache(folder).make("a", "key", lower_to("a.onnx"))
        (folder / "half.onnx").write_text("half")
        raise OSError(errno.ENOSPC, "full")
    assert {path.name for path in (tmp_path / ".out.voxport-partial").iterdir()} == {"a.onnx", "resume.json"}


def test_what_an_interruption_a_failed_verification_and_an_error_leave(tmp_path: Path) -> None:
    graphs = {"a.onnx", "resume.json"}
    for error, left in (
        (KeyboardInterrupt, graphs),
        (VerificationError, {*graphs, "verify.json"}),
        (ValueError, None),
    ):
        with pytest.raises(error), staging(tmp_path / "out") as folder:
            ResumeCache(folder).make("a", "key", lower_to("a.onnx"))
            (folder / "half.onnx").write_text("half")
            (folder / "verify.json").write_text("{}")
            raise error
        folder = tmp_path / ".out.voxport-partial"
        assert ({path.name for path in folder.iterdir()} if folder.exists() else None) == left


@pytest.mark.slow
def test_an_export_whose_artifacts_do_not_match_keeps_the_report_and_the_graphs(
    tmp_path: Path,
    short_verification: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Two graphs are damaged after lowering. The export stops at the first one. The next run reuses it, and
    another one that keeps going reports both.
    """
    command = ["--target", "onnx", "--cache-length", "64", "--out", str(tmp_path / "out")]
    lower = build._lower_graph

    def lower_wrongly(model: Model, target: Target, name: str, folder: Path) -> WeightError | None:
        result = lower(model, target, name, folder)
        if name in ("embed_text", "acoustic_step"):
            weights = folder / f"{name}.onnx.data"
            content = np.fromfile(weights, np.float32)
            content[: content.size // 4] *= 1.1
            content.tofile(weights)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(build, "_lower_graph", lower_wrongly)
        assert export(command) == 4
    lines = capfd.readouterr().err.splitlines()
    assert not any("embed_codes:" in line for line in lines)
    assert all(text in lines[-1] for text in ("embed_text.", "times what is allowed", "verify.json"))
    left = tmp_path / ".out.voxport-partial"
    assert [path.name for path in tmp_path.iterdir()] == [left.name]
    assert failed_components(left) == {"embed_text"}
    with monkeypatch.context() as patch:
        patch.setattr(build, "_lower_graph", lower_wrongly)
        assert export([*command, "--keep-going"]) == 4
    assert sum("reused from" in line for line in capfd.readouterr().err.splitlines()) == 1
    assert failed_components(left) == {"embed_text", "acoustic_step"}


def failed_components(folder: Path) -> set[str]:
    rows = json.loads((folder / "verify.json").read_text())["rows"]
    return {row["component"] for row in rows if "component" in row and not row["passed"]}


def command_of(out: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "voxport", "export", "--checkpoint", str(micro_checkpoint())]
    return [*command, "--target", "onnx", *options, "--out", str(out)]


def started(out: Path, accepted: signal.Signals, *options: str) -> subprocess.Popen[str]:
    """An export in the background."""
    # a process that a shell starts in the background ignores SIGINT
    accept = partial(signal.signal, accepted, signal.SIG_DFL)
    command = command_of(out, *options)
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=accept)
