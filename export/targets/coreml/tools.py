"""coremltools, imported without warnings about macOS frameworks and untested versions, and without packages
that are not used here.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from voxport.export.targets.tracing import without_warnings


@contextmanager
def _without_packages(*names: str) -> Iterator[None]:
    """Hides packages from imports, unless they were imported before."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


# coremltools imports these where they are installed, for conversions that are not used here
with without_warnings("coremltools"), _without_packages("executorch", "sklearn", "transformers"):
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load as load_program
    from coremltools.converters.mil.frontend.torch.ops import _get_inputs as inputs_of
    from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op
    from coremltools.converters.mil.mil import Block, Builder, Function, Operation, Program, Var, types
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry
    from coremltools.converters.mil.mil.passes.pass_pipeline import PassPipelineManager

__all__ = [
    "OPSET",
    "OPSET_NAME",
    "Builder",
    "SSAOpRegistry",
    "ct",
    "inputs_of",
    "load_program",
    "register_torch_op",
    "types",
    "unchecked_passes",
    "without_converter_output",
]

OPSET, OPSET_NAME = ct.target.iOS18, "CoreML8"  # the first with states, and with a scale for each block
_apply, _validate, _replace = PassPipelineManager.apply_pipeline, Program.validate, Block._replace_var
_texts = Program.__str__, Function.__str__


@contextmanager
def without_converter_output() -> Iterator[None]:
    """Hides the progress bars and warnings of the converter. It raises its errors."""
    with (
        without_warnings("coremltools", "torch", "torchao"),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        yield


@contextmanager
def unchecked_passes() -> Iterator[None]:
    """Lets the converter run its passes without validating the program and writing its text after each one.
    The text is for a log that is not kept. The program is validated before the passes, and before it is
    written.

    A pass that replaces a value looks at the operations that use it, and not at the whole program.
    """
    PassPipelineManager.apply_pipeline = staticmethod(_apply_unchecked)
    try:
        yield
    finally:
        PassPipelineManager.apply_pipeline = staticmethod(_apply)


def _apply_unchecked(program: Program, pipeline: ct.PassPipeline) -> None:
    Program.validate = lambda *_, **__: None
    Program.__str__ = Function.__str__ = object.__repr__
    Block._replace_var = _replace_in_users
    try:
        _apply(program, pipeline)
    finally:
        Block._replace_var = _replace
        Program.validate, (Program.__str__, Function.__str__) = _validate, _texts


def _replace_in_users(
    block: Block,
    old_var: Var,
    new_var: Var,
    anchor_op: Operation | None = None,
    end_op: Operation | None = None,
    no_check_var_types: bool = False,
) -> int:
    """`Block._replace_var`, which reads only the users of `old_var` where `anchor_op` makes it. They are all
    users as well where there is no anchor, or where the anchor makes an input of the operation that makes it.

    The order in which users are changed may differ. Later passes do not depend on it.
    """
    made_by = old_var.op
    if end_op is None and made_by is not None and made_by.enclosing_block is block:
        is_before = anchor_op is None or any(var.op is anchor_op for var in made_by.get_flattened_inputs())
        anchor_op = made_by if is_before else anchor_op
    count: int = _replace(block, old_var, new_var, anchor_op, end_op, no_check_var_types)
    return count
