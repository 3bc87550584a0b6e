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
    assert "files: all hashes match" in out
    assert ("threads on this machine: 1\n" in out) is (target in ("onnx", "executorch"))


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_info_of_a_damaged_bundle_names_the_file_and_no_verdict(
    onnx_copy: Path, option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    voice = next((onnx_copy / "voices").iterdir())
    content = voice.read_bytes()
    voice.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert voxport(["info", str(onnx_copy), *option]) == 5
    said = capsys.readouterr()
    assert not said.out and f"{voice}: its bytes differ from the manifest's hash" in said.err
