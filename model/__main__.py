"""`python -m model`: look into a checkpoint, or make a synthetic one. `--help` answers without importing torch."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from math import prod
from pathlib import Path
from typing import Any

from bundle.errors import VoxportError

USAGE, FAILED, INTERRUPTED = 2, 3, 130
DEFAULT_SIZE = "tiny"


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 2 usage, 5 integrity."""
    arguments = _parser().parse_args(argv)
    _set_up_logging()
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()  # here, where a full disk behind it can still be told
        return code
    except VoxportError as error:
        print(f"voxport: error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(
            f"voxport: error: {error.name} is not installed; install voxport with its extra [export]: pip install '.[export]' in its folder",
            file=sys.stderr,
        )
        return USAGE
    except BrokenPipeError:  # whoever read has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if (
            getattr(error, "filename", None) is None
        ):  # of stdout: what is left in its buffer has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"voxport: error: {error.filename or 'stdout'}: {error.strerror or error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("voxport: interrupted; nothing was left behind", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m model", description="Speech checkpoints as published.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    inspect = commands.add_parser(
        "inspect",
        help="check a checkpoint and say what it holds",
        description="Check a checkpoint strictly; loads no weights.",
    )
    inspect.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="folder with params.json and consolidated.safetensors",
    )
    inspect.add_argument("--json", action="store_true", help="the summary as JSON on stdout")
    inspect.set_defaults(run=_inspect)

    synth = commands.add_parser(
        "synth",
        help="write a synthetic checkpoint",
        description="Write a checkpoint of random weights in the published format.",
    )
    synth.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
    synth.add_argument(
        "--family",
        default="voxtral-tts",
        metavar="MODEL",
        help="voxtral-tts or voxtral-realtime (default: voxtral-tts)",
    )
    synth.add_argument(
        "--size",
        default=DEFAULT_SIZE,
        help=f"tiny (2 MB), small (0.1 GB) or full (8 GB, the published numbers); default: {DEFAULT_SIZE}",
    )
    synth.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes (default: 0)")
    synth.add_argument("--json", action="store_true", help="what was written, as JSON on stdout")
    synth.set_defaults(run=_synth)
    return parser


def _set_up_logging() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(elapsed)s %(message)s", force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_add_elapsed)


def _add_elapsed(record: logging.LogRecord) -> bool:
    record.elapsed = f"[{record.relativeCreated / 1000:6.1f}s]"
    return True


def _synth(arguments: argparse.Namespace) -> int:
    from model.families import find_family

    key = find_family(arguments.family)
    from model.synthetic.checkpoint import write_checkpoint

    write_checkpoint(arguments.out, arguments.size, arguments.seed, key)
    size = sum(path.stat().st_size for path in arguments.out.rglob("*") if path.is_file())
    result = {
        "out": str(arguments.out),
        "family": key,
        "size": arguments.size,
        "seed": arguments.seed,
        "bytes": size,
    }
    print(json.dumps(result) if arguments.json else arguments.out)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    summary = summarize(arguments.checkpoint)
    if arguments.json:
        print(json.dumps(summary, indent=1))
    else:
        print("\n".join(_lines(summary)))
    return 0


def summarize(folder: Path) -> dict[str, Any]:
    """What a checkpoint holds, after a strict check of every tensor's name, shape and dtype. Raises VoxportError."""
    from model.checkpoint import Checkpoint, expected_tensors
    from model.families import family_of, open_family

    family = open_family(family_of(folder))
    config = family.load_config(folder)
    checkpoint = Checkpoint(folder)
    shapes = expected_tensors(family.root(config, checkpoint))
    return {
        "family": family.name,
        "config": config.model_dump(mode="json"),
        "summary": dict(family.summary(config)),
        "tensors": len(shapes),
        "parameters": _parameters(shapes, family.parts),
        "bytes": checkpoint.path.stat().st_size,
        "dtypes": sorted({checkpoint.dtype(name) for name in shapes}),
        "voices": {
            name: rows.shape[0]
            for name, rows in (family.voices(folder, config) if family.voices else {}).items()
        },
        "tokenizer": (folder / "tekken.json").is_file(),
    }


def _parameters(shapes: dict[str, tuple[int, ...]], parts: dict[str, str]) -> dict[str, int]:
    """Number of values in each part."""
    counts = dict.fromkeys(parts.values(), 0)
    for name, shape in shapes.items():
        counts[next(part for beginning, part in parts.items() if name.startswith(beginning))] += prod(shape)
    return counts


def _lines(summary: dict[str, Any]) -> list[str]:
    parameters = summary["parameters"]
    rows = [
        ("family", summary["family"]),
        *summary["summary"].items(),
        (
            "weights",
            f"{summary['tensors']} tensors, {summary['bytes']:,} bytes, {', '.join(summary['dtypes'])}",
        ),
        ("parameters", f"{sum(parameters.values()):,}"),
        *((f"  {part}", f"{count:,}") for part, count in parameters.items()),
        (
            "voices",
            ", ".join(f"{name} ({count} rows)" for name, count in summary["voices"].items()) or "none",
        ),
        ("tokenizer", "tekken.json" if summary["tokenizer"] else "no tekken.json"),
    ]
    return [f"{label:<24}{value}" for label, value in rows]


if __name__ == "__main__":
    sys.exit(main())
