"""The rows that register the exercises, for the duration of a test module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import model.families
import runtime.families
from export.targets import TARGETS
from model.synthetic.checkpoint import write_checkpoint
from runtime.engines import ENGINES, EngineEntry


@pytest.fixture(scope="module")
def rows() -> Iterator[pytest.MonkeyPatch]:
    """Adds rows to tables, and removes them after the module."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def toy_checkpoint(rows, tmp_path_factory) -> Path:
    """A checkpoint of the toy family, which two rows add."""
    row = model.families.Row("Toy", "exercises.toy_model")
    rows.setitem(model.families.FAMILIES, "toy", row)
    rows.setitem(runtime.families.FAMILIES, "toy", "exercises.toy_runtime.family")
    folder = tmp_path_factory.mktemp("checkpoint") / "toy"
    write_checkpoint(folder, key="toy")
    return folder


@pytest.fixture(scope="module")
def numpy_target(rows) -> str:
    """The name of the toy target, which two rows add."""
    rows.setitem(TARGETS, "numpy", ("exercises.toy_target.target", "NumpyTarget"))
    rows.setitem(ENGINES, "numpy", EngineEntry("exercises.toy_target.engine", "NumpyEngine", ("numpy",)))
    return "numpy"
