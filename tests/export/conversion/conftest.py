"""Converted golden checkpoints, and a family of weights in a tree."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.export.conversions import FOLDERS, convert

from voxport.model.families import FAMILIES, Row


@pytest.fixture(scope="module", params=FOLDERS)
def source(request: pytest.FixtureRequest) -> Path:
    return FOLDERS[request.param]


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mlx") / "out"
    assert convert(source, out, "--to", "mlx") == 0
    return out


@pytest.fixture
def realtime(tmp_path: Path) -> Path:
    """A converted folder that a test may damage."""
    assert convert(FOLDERS["voxtral_realtime"], tmp_path / "realtime", "--to", "mlx") == 0
    return tmp_path / "realtime"


@pytest.fixture(scope="module")
def integers(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("w4") / "out"
    assert convert(source, out, "--to", "mlx", "--quant", "w4") == 0
    return out


@pytest.fixture(scope="module")
def tree_family() -> Iterator[None]:
    """The family `tree` is in the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "tree", Row("Tree", "support.model.tree_family"))
        yield
