"""What an import of voxport brings: one name, its types, and few modules."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

COUNTS = """
import sys
from voxport.__main__ import main
assert main(sys.argv[1:]) == 0
own = [name for name, module in sys.modules.items() if name.split(".")[0] == "voxport"]
print("MODULES", *(name for name in own if getattr(sys.modules[name], "__file__", None)))
"""
MAX_DRY_RUN, MAX_SAY = 72, 41  # modules of the project


def run(*command: object, path: Path, folder: Path) -> str:
    """What a process of Python prints that finds voxport in `path`."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | {"PYTHONPATH": str(path)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tree_without_its_links_says_what_to_do(tmp_path: Path) -> None:
    """As unpacked from a .zip: a link is a file with the path that it leads to."""
    (tmp_path / "voxport").mkdir()
    shutil.copy(ROOT / "src" / "voxport" / "__init__.py", tmp_path / "voxport")
    (tmp_path / "voxport" / "bundle").write_text("../../bundle")
    code = "try: import voxport\nexcept ImportError as error: print(error)"
    found = run("-c", code, path=tmp_path, folder=tmp_path)
    assert "is not a link to a folder" in found and "unpack the .tar.gz archive" in found


def modules_of(*arguments: object) -> list[str]:
    """The modules of voxport that a command imports in a new process."""
    shown = run("-c", COUNTS, *arguments, path=ROOT / "src", folder=ROOT)
    return shown.partition("MODULES")[2].split()


def test_a_dry_run_of_an_export_imports_few_modules(checkpoint: Path) -> None:
    found = modules_of("export", "--target", "onnx", "--quant", "w8", "--checkpoint", checkpoint, "--dry-run")
    assert len(found) <= MAX_DRY_RUN, "\n".join(found)


@pytest.mark.parametrize("wrong", [["--quant", "w5"], ["--quant", "w8g128"], ["--quant-rule", "*=w5"]])
def test_names_are_checked_before_torch_is_imported(wrong: list[str]) -> None:
    arguments = ["export", "--target", "executorch", *wrong]
    code = f"import sys\nfrom voxport.__main__ import main\nprint(main({arguments}), 'torch' in sys.modules)"
    assert run("-c", code, path=ROOT / "src", folder=ROOT).split() == ["2", "False"]


@pytest.mark.slow
def test_say_imports_few_modules(bundles: Path, tmp_path: Path) -> None:
    bundle, out = bundles / "onnx", tmp_path / "out.wav"
    found = modules_of("say", "Hello.", "--bundle", bundle, "--max-frames", "2", "-o", out)
    assert len(found) <= MAX_SAY, "\n".join(found)
