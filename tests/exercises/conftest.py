"""The rows of tables that register the exercises, for the duration of a test module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import voxport.model.families
import voxport.runtime.families
from voxport.export.targets import TARGETS
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.runtime.engines import ENGINES, EngineEntry


@pytest.fixture(scope="module")
def table_rows() -> Iterator[pytest.MonkeyPatch]:
    """Adds rows to tables, and removes them after the module."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def toy_checkpoint(table_rows: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the toy family, which two rows add."""
    row = voxport.model.families.Row("Toy", "exercises.toy_model")
    table_rows.setitem(voxport.model.families.FAMILIES, "toy", row)
    table_rows.setitem(voxport.runtime.families.FAMILIES, "toy", "exercises.toy_runtime")
    folder = tmp_path_factory.mktemp("checkpoint") / "toy"
    write_checkpoint(folder, key="toy")
    return folder


@pytest.fixture(scope="module")
def numpy_target(table_rows: pytest.MonkeyPatch) -> str:
    """The name of the toy target, which two rows add."""
    table_rows.setitem(TARGETS, "numpy", ("exercises.toy_target.target", "NumpyTarget"))
    table_rows.setitem(
        ENGINES, "numpy", EngineEntry("exercises.toy_target.engine", "NumpyEngine", ("numpy",))
    )
    return "numpy"
