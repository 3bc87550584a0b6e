"""What decides the artifacts of a target: a change elsewhere stops no resume and keeps bundles current."""

import re
import shutil
from pathlib import Path

import pytest
from support.paths import ROOT

from voxport.export.job import lowering_key
from voxport.export.targets import TARGETS

PACKAGES = ("bundle", "export", "model", "quantize", "runtime")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code of all packages."""
    root = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("*.pyc"))
    return root


def keys(root: Path) -> dict[str, str]:
    lowering_key.cache_clear()
    return {target: lowering_key(root / "export" / "targets" / target, root) for target in TARGETS}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("bundle/spec.py", set(TARGETS)),
        ("model/layers/attention.py", set(TARGETS)),
        ("model/voxtral_tts/modules.py", set(TARGETS)),
        ("quantize/search.py", set(TARGETS)),
        ("export/model.py", set(TARGETS)),
        ("export/targets/shared.py", set(TARGETS)),
        *((f"export/targets/{target}/lowering.py", {target}) for target in TARGETS),
        *((f"export/targets/{target}/read_back.py", set()) for target in TARGETS),
        ("export/targets/coreai/copies.py", set()),
        ("bundle/errors.py", set()),
        ("bundle/FORMAT.md", set()),
        ("export/build.py", set()),
        ("export/verify/checks.py", set()),
        ("export/evaluation/figures.py", set()),
        ("model/synthetic/checkpoint.py", set()),
        ("model/voxtral_tts/synthetic.py", set()),
        ("model/voxtral_tts/model.md", set()),
        ("model/mlx/tensor_layouts.py", set()),
        ("runtime/engines/onnx.py", set()),
        ("runtime/serve/worker.py", set()),
        ("runtime/mil/executor.py", set()),
    ],
)
def test_a_change_makes_artifacts_of_these_targets_again(tree: Path, name: str, changed: set[str]) -> None:
    path, before = tree / name, keys(tree)
    content = path.read_bytes()
    path.write_bytes(content + b"# changed\n")
    after = keys(tree)
    path.write_bytes(content)
    assert {target for target in TARGETS if after[target] != before[target]} == changed


def test_nothing_of_the_runtime_decides_an_artifact() -> None:
    paths = [path for pattern in ("export/model.py", "export/targets/**/*.py") for path in ROOT.glob(pattern)]
    found = {
        path.name for path in paths if re.search("^(from|import) voxport.runtime", path.read_text(), re.M)
    }
    assert found <= {"read_back.py", "copies.py"}, "which verify"
