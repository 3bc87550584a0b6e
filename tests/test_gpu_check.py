"""The check on a GPU, with phases that need none: results are recorded, and a failure ends nothing."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.paths import ROOT

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
    assert not check.run("hangs", "-c", "import time; time.sleep(60)", limit=1)
    assert check.run("repository", "-c", "import voxport.bundle.manifest")
    check.seconds = 0
    assert not check.run("late", "-c", "raise SystemExit(0)")
    figures, fails, hangs, _, late = json.loads(check.out.read_text())["phases"]
    assert figures["result"] == {"ms": 3} and figures["exit"] == 0
    assert (fails["exit"], fails["result"], fails["messages"]) == (1, ["a line"], ["what was wrong"])
    assert hangs["exit"] is None and hangs["messages"][-1] == "stopped after 1 s"
    assert late["error"] == "no time left"
