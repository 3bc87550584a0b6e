"""Say whether a checkpoint is loadable, what to do about each problem, and what it holds.

Loads no weights. Without torch, the tensors are not compared with the model that the configuration describes.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import IntegrityError
from voxport.bundle.names import HUB_FORM
from voxport.cli.arguments import add_json, folder
from voxport.cli.checkpoint import add_weights_argument

if TYPE_CHECKING:
    from collections.abc import Collection

    from voxport.model.inspection import Inspection

MAX_PROBLEMS = 20  # in the text; --json has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    checkpoint = f"folder of a checkpoint as published, or its name in the hub, {HUB_FORM}"
    parser.add_argument("checkpoint", type=folder, metavar="CHECKPOINT", help=checkpoint)
    add_weights_argument(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        found = _inspect_files(arguments.checkpoint, arguments.weights, arguments.adapter)
    else:
        from voxport.model.inspection import inspect_checkpoint

        found = inspect_checkpoint(arguments.checkpoint, arguments.weights, arguments.adapter)
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(_lines(found)))
    if found["problems"]:
        raise IntegrityError(*found["problems"])
    return 0


def _inspect_files(folder: Path, weights: Collection[str], adapter: Path | None) -> Inspection:
    """The contents as far as they are known without torch. Raises UsageError if `folder` is no checkpoint."""
    from voxport.model.download import missing, read_header, truncated, unfinished
    from voxport.model.families import layout_of
    from voxport.model.foreign import ADAPTER_WEIGHTS, foreign_format_named

    found: Inspection = {"loadable": None, "problems": [], "notes": []}
    try:
        with foreign_format_named(folder):
            found["family"], layout = layout_of(folder, weights, adapter)
            config = layout.load_config(folder)
            found["config"] = config.model_dump(mode="json")
            layout.check_tokenizer(folder, config)
            found["tokenizer"] = bool(layout.tokenizer_files(folder))
            paths = [file.path for file in layout.weight_files(folder)]
            added = [layout.adapter / ADAPTER_WEIGHTS] if layout.adapter else []
            found["notes"] = [f"adapter {path}: not compared with its base" for path in added]
            for path in paths + added:
                reason = (unfinished(path) or truncated(path)) if path.is_file() else missing(path)
                if not (reason or read_header(path)):
                    reason = "not a safetensors file; fetch it again"
                found["problems"] += [f"{path}: {reason}"] if reason else []
            if found["problems"]:
                raise IntegrityError(*found["problems"])
    except IntegrityError as error:
        return found | {"loadable": False, "problems": [*error.faults]}
    entries = [entry for path in paths for entry in read_header(path).values()]
    return found | {
        "tensors": len(entries),
        "bytes": sum(path.stat().st_size for path in paths),
        "dtypes": sorted({entry["dtype"] for entry in entries}),
        "parameters": {"in all tensors": sum(prod(entry["shape"]) for entry in entries)},
    }


def _lines(found: Inspection) -> list[str]:
    """Text of a result: the verdict, problems, notes, and a table of the contents."""
    problems = found["problems"]
    verdict = "loadable" if found["loadable"] else "whole; its tensors are not compared, which needs torch"
    lines = [f"NOT LOADABLE, problems: {len(problems)}" if problems else verdict]
    lines += [f"  {number}. {problem}" for number, problem in enumerate(problems[:MAX_PROBLEMS], 1)]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"  and {len(problems) - MAX_PROBLEMS} more, which --json lists")
    lines += [f"  note: {note}" for note in found["notes"]]
    rows = _rows(found)
    width = max((len(label) for label, _ in rows), default=0) + 1
    return lines + [f"{label:<{width}}{value}" for label, value in rows]


def _rows(found: Inspection) -> list[tuple[str, str]]:
    """Labels and texts of what is known."""
    rows = [("family", found["family"])] if "family" in found else []
    rows += found.get("summary", {}).items()
    if "bytes" in found:
        tensors = [f"{found['tensors']} tensors"] if "tensors" in found else []
        weights = [*tensors, f"{found['bytes']:,} bytes", *found.get("dtypes", ())]
        rows.append(("weights", ", ".join(weights)))
    if "parameters" in found:
        rows.append(("parameters", f"{sum(found['parameters'].values()):,}"))
        rows += [(f"  {part}", f"{count:,}") for part, count in found["parameters"].items()]
    if "voices" in found:
        voices = ", ".join(f"{name} ({count} rows)" for name, count in found["voices"].items())
        rows.append(("voices", voices or "none"))
    if "tokenizer" in found:
        rows.append(("tokenizer", "present" if found["tokenizer"] else "none"))
    if "languages" in found:
        rows.append(("languages", ", ".join(found["languages"])))
    if "licence" in found:
        rows.append(("licence", found["licence"]))
    return rows
