"""Packages that several test modules use."""

# coremltools has no types.
# mypy: disable-error-code="untyped-decorator"

from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb
from support.runtime.mil_packages import save


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    @mb.program(input_specs=[mb.TensorSpec((2, 16))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        weight = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
        return mb.softmax(x=mb.linear(x=x, weight=weight), axis=-1, name="y")

    return save(program, tmp_path_factory.mktemp("mil") / "small.mlpackage")


@pytest.fixture(scope="session")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    @mb.program(input_specs=[mb.TensorSpec((2,))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        in_float16 = mb.tanh(x=mb.cast(x=x, dtype="fp16"))
        whole = mb.add(x=mb.cast(x=x, dtype="int32"), y=np.int32(300))
        return mb.add(x=mb.cast(x=in_float16, dtype="fp32"), y=mb.cast(x=whole, dtype="fp32"), name="y")

    return save(program, tmp_path_factory.mktemp("typed") / "typed.mlpackage")
