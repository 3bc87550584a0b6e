"""Check a checkpoint strictly and show what it holds. Loads no weights."""

import argparse
import json
from math import prod
from pathlib import Path
from typing import Any

from bundle.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    checkpoint = "folder of a checkpoint as published"
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=checkpoint)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")


def run(arguments: argparse.Namespace) -> int:
    summary = summarize(arguments.checkpoint)
    print(json.dumps(summary, indent=1) if arguments.json else "\n".join(_lines(summary)))
    return 0


def summarize(folder: Path) -> dict[str, Any]:
    """Contents of a checkpoint, after a check of each tensor's name, shape and dtype. Raises VoxportError."""
    from model.checkpoint import expected_tensors
    from model.families import family_of, open_family

    family = open_family(family_of(folder))
    config = family.load_config(folder)
    checkpoint = family.open_checkpoint(folder)
    shapes = expected_tensors(family.open_root(config, checkpoint))
    voices = family.format.voices(folder, config)
    return {
        "family": family.name,
        "config": config.model_dump(mode="json"),
        "summary": dict(family.summary(config)),
        "tensors": len(shapes),
        "parameters": _parameters(shapes, family.parameter_groups),
        "bytes": checkpoint.size,
        "dtypes": sorted({checkpoint.dtype(name) for name in shapes}),
        "voices": {name: rows.shape[0] for name, rows in voices.items()},
        "tokenizer": bool(family.format.tokenizer_files(folder)),
    }


def _parameters(shapes: dict[str, tuple[int, ...]], groups: dict[str, str]) -> dict[str, int]:
    """Number of parameters of each group. Raises ConfigError on a tensor of no group."""
    counts = dict.fromkeys(groups.values(), 0)
    for name, shape in shapes.items():
        group = next((group for prefix, group in groups.items() if name.startswith(prefix)), None)
        if group is None:
            raise ConfigError(f"parameter_groups has no prefix of {name}; add one to the family")
        counts[group] += prod(shape)
    return counts


def _lines(summary: dict[str, Any]) -> list[str]:
    parameters = summary["parameters"]
    voices = ", ".join(f"{name} ({count} rows)" for name, count in summary["voices"].items()) or "none"
    weights = f"{summary['tensors']} tensors, {summary['bytes']:,} bytes, {', '.join(summary['dtypes'])}"
    rows = [
        ("family", summary["family"]),
        *summary["summary"].items(),
        ("weights", weights),
        ("parameters", f"{sum(parameters.values()):,}"),
        *((f"  {part}", f"{count:,}") for part, count in parameters.items()),
        ("voices", voices),
        ("tokenizer", "present" if summary["tokenizer"] else "none"),
    ]
    width = max(len(label) for label, _ in rows) + 1
    return [f"{label:<{width}}{value}" for label, value in rows]
