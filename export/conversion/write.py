"""Writes weight files tensor by tensor: memory holds one tensor at a time, whatever the size of the model."""

import json
import struct
from pathlib import Path

import torch

from voxport.bundle.progress import advance
from voxport.export.conversion.outputs import STORED, Output
from voxport.model.checkpoint_layout import INDEX_SUFFIX


def write_index(path: Path, parts: dict[str, list[Output]]) -> None:
    """Writes the index of shards that are beside `path`, by their names."""
    table = {
        entry.name: Path(name).name
        for name, outputs in parts.items()
        for output in outputs
        for entry in output.entries
    }
    content = {
        "metadata": {"total_size": sum(output.size for outputs in parts.values() for output in outputs)},
        "weight_map": dict(sorted(table.items())),
    }
    path.with_name(path.name + INDEX_SUFFIX).write_text(
        json.dumps(content, indent=2) + "\n", encoding="utf-8"
    )


def write_weights(path: Path, outputs: list[Output], metadata: dict[str, str]) -> None:
    """Writes one file, not by the format's library, which needs all tensors in memory."""
    header = _header(outputs, metadata)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for output in outputs:
            for entry, tensor in zip(output.entries, output.make(), strict=True):
                assert tuple(tensor.shape) == entry.shape and tensor.dtype == STORED[entry.dtype], entry
                flat = tensor.contiguous().reshape(-1).view(torch.uint8)
                file.write(flat.numpy().data)
            advance(output.size / 1e6, output.published)


def _header(outputs: list[Output], metadata: dict[str, str]) -> bytes:
    """The JSON header of a safetensors file, padded with blanks to a multiple of 8 bytes."""
    entries: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for output in outputs:
        for entry in output.entries:
            start, end = end, end + entry.size
            entries[entry.name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [start, end],
            }
    header = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return header + b" " * (-len(header) % 8)
