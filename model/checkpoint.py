"""Strict, lazy reading of safetensors files: a tensor is read when it is asked for."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from voxport.bundle.errors import CheckpointError
from voxport.model.checkpoint_layout import RANDOM_WEIGHTS, WRAPPER, WeightFile
from voxport.model.download import missing, truncated, unfinished

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}
Shapes = dict[str, tuple[int, ...]]  # shapes of tensors, by name
_LAYER = re.compile(r"(?:.*\.)?layers\.\d+(?=\.)")
ONE_RELEASE = "fetch configuration and weights of one release"
Convert = Callable[[str, nn.Module, torch.Tensor], nn.Module | None]
Merge = Callable[[str, torch.Tensor], torch.Tensor]  # with the name of the tensor


class _Entry(NamedTuple):
    """A tensor in a file; `stored_name` is its name there."""

    file: WeightFile
    stored_name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def path(self) -> Path:
        return self.file.path

    def tensor(self) -> torch.Tensor:
        """The published values. Each call maps the file anew: pages of one long-lived mapping would stay in
        memory until the last tensor is read.
        """
        with safe_open(self.path, framework="pt") as file:
            return self.file.restored(self.stored_name, file.get_tensor(self.stored_name))


class Checkpoint:
    """The tensors of one or several safetensors files, by name. The files are mapped, never read whole.

    `is_random` says that voxport wrote the weights. `adapter` changes each tensor that is read.

    Raises CheckpointError if a file is missing or damaged, or two files have a tensor of the same name.
    """

    def __init__(self, files: Sequence[WeightFile]):
        self.files = tuple(files)
        self._entries: dict[str, _Entry] = {}
        faults: list[str] = []
        for file in self.files:
            try:
                header = _read_header(file)
            except CheckpointError as error:
                faults += error.faults
                continue
            for name, entry in header:
                other = self._entries.setdefault(name, entry)
                if other is not entry and not _is_same(other, entry):
                    raise CheckpointError(
                        f"{file.path}: tensor {entry.stored_name}: also in {other.path} as "
                        f"{other.stored_name}, with other values; expected it once"
                    )
        if faults:
            raise CheckpointError(*faults)
        self.names = frozenset(self._entries)
        self.is_random = any(RANDOM_WEIGHTS in _metadata(file.path) for file in self.files)
        self.adapter: Merge | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.path.stat().st_size for file in self.files)

    @property
    def wrappers(self) -> list[str]:
        """Parts of the names in the files that are left out, because training added them."""
        entries = self._entries.values()
        return sorted({part for entry in entries for part in WRAPPER.findall(entry.stored_name)})

    def dtype(self, name: str) -> str:
        return self._entries[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def path(self, name: str) -> Path:
        """The file of a tensor."""
        return self._entries[name].path

    def metadata(self, name: str) -> dict[str, str]:
        """The metadata of the file of a tensor."""
        return _metadata(self._entries[name].path)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as stored (bfloat16 stays bfloat16). Raises CheckpointError if a value is not finite."""
        entry = self._entries[name]
        tensor = entry.tensor()
        if self.adapter:
            tensor = self.adapter(name, tensor)
        # minimum and maximum propagate NaN, and cost a fiftieth of isfinite over all values
        if tensor.is_floating_point() and not all(map(torch.isfinite, tensor.aminmax())):
            raise CheckpointError(
                f"{entry.path}: tensor {name}: holds values that are not finite; fetch it again"
            )
        return tensor

    def changed(self, merge: Merge) -> "Checkpoint":
        """The same files, with every tensor changed after the adapter."""
        found, before = copy.copy(self), self.adapter
        found.adapter = merge if before is None else lambda name, tensor: merge(name, before(name, tensor))
        return found

    def below(self, prefix: str) -> tuple[str, ...]:
        """Names of the tensors that begin with `prefix`, sorted."""
        return tuple(sorted(name for name in self.names if name.startswith(prefix)))

    def has(self, expected: Shapes) -> bool:
        """Whether every expected tensor is there in its shape."""
        return all(
            name in self.names and self._entries[name].shape == shape for name, shape in expected.items()
        )

    def check(self, expected: Shapes, unused: tuple[str, ...] = ()) -> None:
        """Raises CheckpointError with every fault unless the tensors are the expected ones, as floats.

        Other tensors are allowed if their names begin with one of `unused`.
        """
        absent = sorted(expected.keys() - self.names)
        extra = sorted(
            name for name in self.names - expected.keys() if not unused or not name.startswith(unused)
        )
        faults = []
        ends = {name.rpartition(".")[2] for name in extra}
        if "scales" in ends:
            raise CheckpointError(
                f"{self._entries[extra[0]].path}: tensor {extra[0]}: the weights were quantised for MLX; "
                "give the published checkpoint, or first run: voxport convert FOLDER OUT --to published"
            )
        if extra and absent:
            refuse_other_names(self._entries[extra[0]].path, extra, absent)
        if absent:
            file = self._expected_file(absent[0])
            faults.append(
                f"{file.path}: tensor {_first_of([*map(file.written, absent)])} missing; "
                f"the configuration describes a model that has it; {ONE_RELEASE}"
            )
        if extra:
            faults.append(
                f"{self._entries[extra[0]].path}: tensor {_first_of(extra)} not part of the model "
                f"that the configuration describes; {ONE_RELEASE}"
            )
        faults += [
            fault
            for name, shape in expected.items()
            if name in self._entries
            for fault in _faults(name, self._entries[name], shape)
        ]
        if faults:
            raise CheckpointError(*faults)

    def _expected_file(self, name: str) -> WeightFile:
        """The first file whose prefix fits best."""
        fitting = [file for file in self.files if name.startswith(file.prefix)] or list(self.files)
        return max(fitting, key=lambda file: len(file.prefix))


def refuse_other_names(path: Path, extra: list[str], absent: list[str]) -> None:
    """Raises CheckpointError if a file has the names of transformers, or names with parts of a wrapper."""
    if any(".self_attn." in name for name in extra) and not any(".self_attn." in name for name in absent):
        raise CheckpointError(
            f"{path}: has names of transformers, as {extra[0]}; expected its config.json beside the file, "
            "and no prefix"
        )
    parts = extra[0].split(".")
    for added in (f"{part}." for part in (*parts, *map(".".join, pairwise(parts)))):
        if absent and set(absent) <= {name.replace(added, "", 1) for name in extra}:
            raise CheckpointError(
                f"{path}: {added!r} is in names, as in {extra[0]}; a wrapper of training added it: "
                "save the weights of the model inside"
            )


def _faults(name: str, found: _Entry, shape: tuple[int, ...]) -> Iterator[str]:
    where = f"{found.path}: tensor {name}"
    if found.shape != shape:
        yield (
            f"{where}: shape {list(found.shape)}, expected {list(shape)} from the configuration; "
            f"{ONE_RELEASE}"
        )
    if found.dtype not in DTYPES:
        yield (
            f"{where}: dtype {found.dtype}, expected one of {', '.join(DTYPES)}; "
            "give a checkpoint as published"
        )


def _metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def _is_same(one: _Entry, other: _Entry) -> bool:
    """Whether two places of a tensor have the same values, as a head that is tied to the table of tokens."""
    is_equal = (one.shape, one.dtype) == (other.shape, other.dtype) and one.dtype in DTYPES
    return is_equal and torch.equal(one.tensor(), other.tensor())


def _read_header(file: WeightFile) -> list[tuple[str, _Entry]]:
    """The tensors of a file with their published names."""
    path = file.path
    if not path.is_file():
        raise CheckpointError(f"{path}: {missing(path)}; expected weights of the checkpoint there")
    if reason := unfinished(path):
        raise CheckpointError(f"{path}: {reason}")
    try:
        with safe_open(path, framework="pt") as opened:
            entries = []
            for name in opened.keys():  # noqa: SIM118  safe_open has no __iter__
                found = opened.get_slice(name)
                entry = _Entry(file, name, tuple(found.get_shape()), found.get_dtype())
                entries.append((file.published(name), entry))
            return entries
    except (SafetensorError, OSError) as error:
        reason = truncated(path) or str(error)
        raise CheckpointError(f"{path}: not a complete safetensors file ({reason}); fetch it again") from None


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def expected_tensors(root: nn.Module) -> Shapes:
    """Names and shapes of the tensors of a checkpoint holder; a tied weight is named once."""
    return {name: tuple(parameter.shape) for name, parameter in root.named_parameters()}


def is_below(path: str, prefixes: Iterable[str]) -> bool:
    """Whether a module path is one of `prefixes` or below one."""
    return any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes)


def layer_of(path: str) -> str:
    """The path of the layer that a module is in, or its own path outside of layers."""
    match = _LAYER.match(path)
    return match.group() if match else path


def materialize(
    root: nn.Module, checkpoint: Checkpoint, prefixes: Iterable[str], convert: Convert | None = None
) -> None:
    """Loads the parameters below `prefixes` into a holder on the meta device, tensor by tensor, as float32.

    `convert(path, module, weight)` may replace a linear or an embedding by a module made from the stored
    weight, so a quantised model never holds a float copy of more than one weight.
    """
    prefixes, replaced = tuple(prefixes), set()
    # A tied weight has the name of the first parameter.
    names = {id(parameter): name for name, parameter in root.named_parameters()}

    def load(parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(checkpoint.tensor(names[id(parameter)]).float(), requires_grad=False)

    for path, parent in list(root.named_modules()):
        if path in replaced:  # its weights are in the replacement
            continue
        for name, child in list(parent.named_children()):
            child_path = f"{path}.{name}" if path else name
            if not convert or not isinstance(child, nn.Linear | nn.Embedding):
                continue
            if not child.weight.is_meta or not is_below(child_path, prefixes):
                continue
            replacement = convert(child_path, child, checkpoint.tensor(names[id(child.weight)]))
            if replacement is None:
                continue
            if isinstance(child, nn.Linear) and child.bias is not None:
                replacement.bias = load(child.bias)
            setattr(parent, name, replacement)
            replaced.add(child_path)
        for name, parameter in list(parent.named_parameters(recurse=False)):
            if parameter.is_meta and is_below(f"{path}.{name}" if path else name, prefixes):
                setattr(parent, name, load(parameter))
