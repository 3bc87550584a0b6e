"""A random checkpoint, and a copy of it."""

import shutil
from pathlib import Path

import pytest

from voxport.model.synthetic.checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_checkpoint(folder)
    return folder


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "tiny"))
