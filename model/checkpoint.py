"""Strict, lazy reading of a checkpoint in safetensors: a tensor is read when it is asked for, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from bundle.errors import CheckpointError, CheckpointNotFound

WEIGHTS = "consolidated.safetensors"
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}
Convert = Callable[[str, nn.Module, torch.Tensor], nn.Module | None]


class Checkpoint:
    """A folder with `consolidated.safetensors`; the file is mapped, never read whole."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / WEIGHTS
        if not folder.is_dir():
            raise CheckpointNotFound(f"{folder}: no such folder; give the folder of a published checkpoint")
        if not self.path.is_file():
            raise CheckpointError(f"{self.path}: missing; expected the weights of the checkpoint there")
        try:
            self._file = safe_open(self.path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{self.path}: not a complete safetensors file ({error}); fetch it again"
            ) from None

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        return self._file.get_slice(name).get_dtype()

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as stored (bfloat16 stays bfloat16). Raises CheckpointError where a value is not finite.

        The file is mapped anew for each: pages of one mapping would stay in memory until the last tensor is read.
        """
        with safe_open(self.path, framework="pt") as file:
            tensor = file.get_tensor(name)
        if not all(
            map(torch.isfinite, tensor.aminmax())
        ):  # which pass NaN on, and take a fiftieth of the time
            raise CheckpointError(
                f"{self.path}: tensor {name}: holds values that are not finite; fetch it again"
            )
        return tensor

    def check(self, expected: dict[str, tuple[int, ...]]) -> None:
        """Every tensor is expected and every expected tensor is there, in its shape, as a float. Raises CheckpointError."""
        missing, extra = sorted(expected.keys() - self.names), sorted(self.names - expected.keys())
        if missing:
            raise CheckpointError(
                f"{self.path}: tensor {_some(missing)} missing; params.json describes a model that has it"
            )
        if extra:
            raise CheckpointError(
                f"{self.path}: tensor {_some(extra)} not part of the model that params.json describes"
            )
        for name, shape in expected.items():
            if self.shape(name) != shape:
                raise CheckpointError(
                    f"{self.path}: tensor {name}: shape {list(self.shape(name))}, expected {list(shape)} from params.json"
                )
            if self.dtype(name) not in DTYPES:
                raise CheckpointError(
                    f"{self.path}: tensor {name}: dtype {self.dtype(name)}, expected one of {', '.join(DTYPES)}"
                )


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def expected_tensors(root: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a root module whose parameters bear the checkpoint's names."""
    return {name: tuple(parameter.shape) for name, parameter in root.named_parameters()}


def is_below(path: str, prefixes: Iterable[str]) -> bool:
    return any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes)


def materialize(
    root: nn.Module, checkpoint: Checkpoint, prefixes: Iterable[str], convert: Convert | None = None
) -> None:
    """Loads what lies below `prefixes` into a root module on the meta device, tensor by tensor, as float32.

    `convert(path, module, weight)` may take a linear or an embedding as stored and give the module that replaces it,
    so that a quantised model never holds a float copy of more than one weight.
    """
    prefixes, replaced = tuple(prefixes), set()
    names = {
        id(parameter): name for name, parameter in root.named_parameters()
    }  # of a tied weight, the first one
    for path, parent in list(root.named_modules()):
        if path in replaced:  # its weights would be read once more, and held for nobody
            continue
        for name, child in list(parent.named_children()):
            child_path = f"{path}.{name}" if path else name
            if (
                convert
                and isinstance(child, nn.Linear | nn.Embedding)
                and is_below(child_path, prefixes)
                and child.weight.is_meta
            ):
                replacement = convert(child_path, child, checkpoint.tensor(names[id(child.weight)]))
                if replacement is not None:
                    if getattr(child, "bias", None) is not None:
                        replacement.bias = nn.Parameter(
                            checkpoint.tensor(names[id(child.bias)]).float(), requires_grad=False
                        )
                    setattr(parent, name, replacement)
                    replaced.add(child_path)
        for name, parameter in list(parent.named_parameters(recurse=False)):
            full = f"{path}.{name}" if path else name
            if is_below(full, prefixes) and parameter.is_meta:
                setattr(
                    parent,
                    name,
                    nn.Parameter(checkpoint.tensor(names[id(parameter)]).float(), requires_grad=False),
                )
