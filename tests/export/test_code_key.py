"""What decides the artifacts of a target: a change elsewhere stops no resume and keeps bundles current."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.export.cache import SOURCES
from support.paths import ROOT

from voxport.export.job import LOWERING, lowering_key
from voxport.export.targets import TARGETS

PACKAGES = ("bundle", "export", "model", "quantize", "runtime")
# Code of a target's folder or of the resolver that calls the runtime: verification, and checks of options.
CALLS_RUNTIME = {"export/resolve.py", "export/targets/onnx/read_back.py"}


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
    found = {
        name
        for name in lowering_modules()
        if any(module.startswith("voxport.runtime") for module in imports(ROOT / name))
    }
    assert found <= CALLS_RUNTIME


def test_a_verdict_that_tests_keep_depends_on_all_code_that_verifies() -> None:
    """Otherwise a fault in an engine or a check would be hidden."""
    found, left = set[Path](), [ROOT / "export" / "verify" / "checks.py"]
    while left:
        path = left.pop()
        found.add(path)
        imported = {module_path(module) for module in imports(path) if module.startswith("voxport.")}
        left += [other for other in imported if other and other not in found]
    assert ROOT / "runtime" / "engines" / "base.py" in found
    assert {path.relative_to(ROOT).as_posix() for path in found} <= {*modules(SOURCES)}


def lowering_modules() -> Iterator[str]:
    return modules((*LOWERING, "export/targets/*/*.py"))


def modules(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            for module in path.rglob("*.py") if path.is_dir() else [path]:
                yield module.relative_to(ROOT).as_posix()


def module_path(name: str) -> Path | None:
    """The file of a module or package; None for a name in a module."""
    folder = ROOT.joinpath(*name.split(".")[1:])
    return next((path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.exists()), None)


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports when it is imported itself or called."""
    for node in _without_types(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _without_types(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from _without_types(child)
