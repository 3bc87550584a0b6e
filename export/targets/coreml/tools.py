"""coremltools, imported without warnings about macOS frameworks and untested versions."""

from voxport.export.targets.shared import without_warnings

with without_warnings("coremltools"):
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load as load_program
    from coremltools.converters.mil.frontend.torch.ops import _get_inputs as inputs_of
    from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op
    from coremltools.converters.mil.mil import Builder, types
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

__all__ = ["Builder", "SSAOpRegistry", "ct", "inputs_of", "load_program", "register_torch_op", "types"]

OPSET, OPSET_NAME = ct.target.iOS18, "CoreML8"  # the first with states, and with a scale for each block
