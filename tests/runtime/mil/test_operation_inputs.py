"""Every operation has names and defaults of coremltools' op set, and a test."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import coremltools as ct
import numpy as np
import pytest
from test_arithmetic import BINARY, DIVISIONS, LOGIC, REDUCTIONS, UNARY

from voxport.runtime.mil.operations import FIXED, OPERATION_INPUTS, OPERATIONS
from voxport.runtime.mil.types import UnsupportedError


def test_every_operation_has_a_test() -> None:
    """A test module of this folder calls the operation by name, or lists it in a table."""
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    called = set(re.findall(r'op\("(\w+)"', source)) | {*UNARY, *BINARY, *DIVISIONS, *LOGIC, *REDUCTIONS}
    assert sorted(OPERATIONS.keys() - called) == []


def _defaults(definition: type[Any], version: object) -> dict[str, tuple[bool, Any]]:
    """Inputs of an operation in coremltools: name -> (optional, default). Some depend on the rank of x."""
    operation = object.__new__(definition)
    tensor = SimpleNamespace(rank=4, shape=(1, 2, 3, 4), dtype=version, val=None)
    operation.x, operation.weight, operation.return_indices = tensor, tensor, SimpleNamespace(val=True)
    defaults = dict(definition.default_inputs(operation).items())
    return {
        name: (kind.optional, defaults.get(name)) for name, kind in definition.input_spec.input_types.items()
    }


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_names_and_defaults_equal_the_op_set(name: str) -> None:
    from coremltools.converters.mil.mil import types
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    own = {key: parameter.default for key, parameter in OPERATION_INPUTS[name].parameters.items()}
    own |= OPERATION_INPUTS[name].fixed
    defined = _defaults(SSAOpRegistry.core_ops[name][ct.target.iOS18], types.fp32)
    required = {key for key, (optional, _) in defined.items() if not optional}
    assert required <= own.keys() <= defined.keys()  # exports do not use the other inputs
    for key, found in own.items():
        default = defined[key][1]
        if found is inspect.Parameter.empty:  # exports always give this input
            continue
        if found is not None:
            assert found == default if isinstance(found, str) else np.float32(found) == np.float32(default)
        else:  # None stands for the default of the op set: ones, no padding, or zeros
            assert default is None or np.all(np.isin(default, (0, 1))), f"{key}: {default}"


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in FIXED for key in FIXED[name]])
def test_a_mode_that_no_export_emits_is_refused_by_name(name: str, key: str) -> None:
    other = "other" if isinstance(FIXED[name][key], str) else not FIXED[name][key]
    with pytest.raises(UnsupportedError, match=f"{key} is {other!r}, expected {FIXED[name][key]!r}"):
        OPERATION_INPUTS[name].convert({key: (other,)})
