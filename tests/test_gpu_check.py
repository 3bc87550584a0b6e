"""The check on a GPU, with phases that need none: results are recorded, and a failure ends nothing."""

import importlib.util
import json
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.paths import ROOT

from tools.gpu.wheels import CONTAINER, remove_kernels

PATH = ROOT / "tools" / "gpu_check.py"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", PATH)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check(tool: ModuleType, tmp_path: Path) -> Any:
    return tool.Check(tmp_path, tmp_path / "out.json", "cuda", seconds=60)


def test_results_and_failures_are_recorded(check: Any) -> None:
    assert check.run("figures", "-c", "print('{\"ms\": 3}')")
    assert not check.run("fails", "-c", "import sys; print('a line'); sys.exit('what was wrong')")
    code = "import subprocess; print('{\"ms\": 4}', flush=True); subprocess.run(['sleep', '60'])"
    assert not check.run("hangs", "-c", code, limit=2)
    code = "import voxport; print(voxport.__path__[0])"
    assert check.run("repository", "-c", code) and check.phases[-1]["result"] == [str(ROOT / "src/voxport")]
    check.seconds = 0
    assert not check.run("late", "-c", "raise SystemExit(0)")
    figures, fails, hangs, _, late = json.loads(check.out.read_text())["phases"]
    assert figures["result"] == {"ms": 3} and figures["exit"] == 0
    assert (fails["exit"], fails["result"], fails["messages"]) == (1, ["a line"], ["what was wrong"])
    assert hangs["exit"] is None and hangs["messages"][-1] == "stopped after 2 s" and hangs["seconds"] < 20
    assert hangs["result"] == {"ms": 4}
    assert late["error"] == "no time left"


def test_what_runs_first_needs_no_package() -> None:
    """They may be among the wheels that it unpacks."""
    code = "import sys, tools.gpu.speed; sys.exit('voxport' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_archives_are_unpacked_before_the_installed_packages(tool: ModuleType, check: Any) -> None:
    (check.folder / "numpy.py").write_text("print('{\"carried\": 1}')")
    with tarfile.open(check.folder / "wheels.tar.xz", "w:xz") as tar:
        tar.add(check.folder / "numpy.py", "numpy.py")
    tool.unpack(check, [check.folder / "wheels.tar.xz"])
    assert check.run("carried", "-c", "import numpy") and check.phases[-1]["result"] == {"carried": 1}


def fat_binary(*architectures: int) -> bytes:
    header = struct.Struct("<HHIQ12xI32x")
    kernels = b"".join(header.pack(2, 0x101, header.size, 8, each) + b"\7" * 8 for each in architectures)
    return CONTAINER + struct.pack("<Q", len(kernels)) + kernels


def test_kernels_of_other_architectures_are_removed() -> None:
    library = bytearray(b"code" + fat_binary(80, 90, 120) + fat_binary(90) + b"more")
    size, kept = len(library), library.index(fat_binary(80, 90, 120)) + 16 + 72 + 64
    remove_kernels(library, 90)
    assert len(library) == size and library.count(7) == 8 and library[kept : kept + 8] == b"\7" * 8
