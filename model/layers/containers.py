"""Modules that hold weights under published tensor names."""

from torch import nn


def module_dict(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(modules)


def conv_of(weights: nn.Module) -> nn.Conv1d:
    """The convolution that a holder has as `conv`."""
    conv = weights.get_submodule("conv")
    assert isinstance(conv, nn.Conv1d)
    return conv
