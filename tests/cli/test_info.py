"""`voxport info` shows what a bundle is and how it would run here."""

from pathlib import Path

import pytest

from voxport.__main__ import main as voxport


@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml", "coreai"])
def test_info_names_recipe_verdict_and_threads(
    bundles: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedded model is small, so an engine with threads uses one."""
    assert voxport(["info", str(bundles / target)]) == 0
    out = capsys.readouterr().out
    assert f"for {target}, recipe w4" in out and "verification: passed" in out
    assert "hashes were not compared here" in out
    assert ("threads on this machine: 1\n" in out) is (target in ("onnx", "executorch"))
