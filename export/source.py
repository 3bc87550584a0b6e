"""An opened checkpoint: its family, configuration, files and quantisable weights. No weight is loaded."""

import copy
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from bundle.files import FileEntry, file_entry
from model.families import family_of, open_family

MAX_REFERENCE_BYTES = 2e9  # of float32 weights that a reference may hold beside the model that is verified


class Source:
    """A checkpoint folder, checked when opened. Raises an error of `bundle.errors` that names the fault."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.family = open_family(family_of(folder))
        self.config = self.family.load_config(folder)
        self.checkpoint = self.family.open_checkpoint(folder)
        self._root = self.family.open_root(self.config, self.checkpoint)

    def root(self) -> nn.Module:
        """A new root module on the meta device."""
        return copy.deepcopy(self._root)

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """Size and hash of every file that a bundle is made from."""
        return {name: file_entry(self.folder / name) for name in self.family.format.source_files(self.folder)}

    @property
    def tokenizer_files(self) -> tuple[str, ...]:
        """Paths of the tokenizer's files that the checkpoint has."""
        return tuple(self.family.format.tokenizer_files(self.folder))

    @property
    def is_large(self) -> bool:
        """Whether memory does not hold a full-precision reference beside the model."""
        return 4 * sum(parameter.numel() for parameter in self._root.parameters()) > MAX_REFERENCE_BYTES

    @cached_property
    def quantizable(self) -> dict[str, nn.Module]:
        """Linears and tables that a recipe may quantise, by path, on the meta device."""
        modules = {
            path: part
            for path, part in self._root.named_modules()
            if isinstance(part, nn.Linear | nn.Embedding)
        }
        return {path: part for path, part in modules.items() if not self.family.is_constant(path)}

    @cached_property
    def voices(self) -> dict[str, torch.Tensor]:
        """Rows [N, dim] of each voice by name; empty for a family without voices."""
        return self.family.format.voices(self.folder, self.config)
