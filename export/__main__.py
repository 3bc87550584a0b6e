"""`python -m export`: a checkpoint becomes verified bundles. `--help` answers without importing torch."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from typing import get_args

from bundle.errors import one_line, system_error
from bundle.log import set_up_logging
from export.targets import parse_targets
from quantize.recipe import find_recipe

USAGE, FAILED, INTERRUPTED = 2, 3, 130
COMMANDS = ("list", "verify", "trace", "bench")
PACKAGES = ("bundle", "model", "export", "runtime", "quantize")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 2 usage, 3 export failed, 4 verification failed, 5 integrity."""
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv and not argv[0].startswith("-") else "build"
    if command not in (*COMMANDS, "build"):
        return _failed(
            f"error: no command {command!r}; there are {', '.join(COMMANDS)}, and --target TARGETS to export",
            USAGE,
        )
    make_parser = {
        "build": _build_parser,
        "list": _list_parser,
        "verify": _verify_parser,
        "trace": _trace_parser,
        "bench": _bench_parser,
    }[command]
    set_up_logging("export", "runtime", "model")
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # a job that is ended cleans up like one that is interrupted
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # warns of torchao's enums on import
    try:
        arguments = make_parser().parse_args(argv[1:] if command != "build" else argv)
        _check_names(arguments)  # before torch is imported
        from export import commands

        code = getattr(commands, f"{command}_command")(arguments)
        sys.stdout.flush()  # here, where a full disk behind it can still be told
        return code
    except KeyboardInterrupt:
        return _failed(
            "interrupted; the same command goes on from the graphs that were finished", INTERRUPTED
        )
    except ModuleNotFoundError as error:
        head = str(error.name).partition(".")[0]
        if head in PACKAGES:
            place = getattr(sys.modules.get(head), "__file__", None) or "a folder on the path"
            return _failed(
                f"error: {place} hides voxport's package {head!r}; rename it, or run from another folder",
                USAGE,
            )
        return _failed(
            f"error: {error.name} is not installed; install voxport with its extra [export]: pip install '.[export]' in its folder",
            USAGE,
        )
    except BrokenPipeError:  # whoever read has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, MemoryError) as error:
        if (
            getattr(error, "filename", None) is None
        ):  # of stdout: what is left in its buffer has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _failed(
            f"error: {system_error(error) if isinstance(error, OSError) else 'not enough memory'}", FAILED
        )
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        return _failed(f"error: {error}", error.exit_code)


def _failed(message: str, code: int) -> int:
    print(f"voxport: {one_line(message)}", file=sys.stderr)
    return code


def _check_names(arguments: argparse.Namespace) -> None:
    """A wrong name of a target or recipe is told at once. Raises RecipeError."""
    if getattr(arguments, "target", None):
        parse_targets(arguments.target)
    if hasattr(arguments, "quant"):
        find_recipe(arguments.quant)
    if getattr(arguments, "model", None):
        from model.families import find_family

        find_family(arguments.model)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    from model.families import FAMILIES, public_name

    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="folder as published (default: an embedded tiny model with random weights)",
    )
    names = " or ".join(map(public_name, FAMILIES))
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"{names}: what a checkpoint must be, or which is embedded (default: voxtral-tts)",
    )
    parser.add_argument(
        "--quant",
        default="none",
        metavar="RECIPE",
        help="none, w8, w4, w4g128, 8da4w, or for Core ML lut4 (default: none)",
    )
    parser.add_argument(
        "--quant-for",
        action="append",
        default=[],
        metavar="COMPONENT=RECIPE",
        help="another recipe for one component; may be repeated",
    )
    parser.add_argument(
        "--quant-rule",
        action="append",
        default=[],
        metavar="PATTERN=RECIPE",
        help="for module paths that match, asked before all else",
    )
    parser.add_argument(
        "--cache-length",
        type=int,
        metavar="ROWS",
        help="rows of the KV cache (default: 2048 for speaking, the model's window for listening)",
    )
    for key, row in FAMILIES.items():
        _add_switches(parser.add_argument_group(row.title), key)


def _add_switches(group: argparse._ArgumentGroup, key: str) -> None:
    """One option for each of a family's switches; what is not given is left to the family."""
    from model.families import switches_of

    for name, field in switches_of(key).model_fields.items():
        option, told = f"--{name.replace('_', '-')}", f"{field.description} (default: {field.default})"
        if field.annotation is bool:
            group.add_argument(option, action="store_const", const=True, help=field.description)
        else:
            choices = get_args(field.annotation) or None
            group.add_argument(option, choices=choices, metavar=None if choices else "VALUE", help=told)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Export a speech checkpoint to ONNX, ExecuTorch or Core ML, quantised and verified.",
        epilog="Other commands: python -m export list | verify BUNDLE | trace | bench (each with --help).",
    )
    parser.add_argument(
        "--target", required=True, metavar="TARGETS", help="onnx, executorch, coreml, or several with commas"
    )
    _add_plan(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the bundle's folder (default: artifacts/NAME-TARGET-RECIPE); with several targets the folder of their bundles",
    )
    parser.add_argument(
        "--compute-precision",
        choices=("float16", "float32"),
        help="of a Core ML bundle's floats (default: float16)",
    )
    parser.add_argument("--force", action="store_true", help="replace whatever the output folder holds")
    parser.add_argument(
        "--no-verify", action="store_true", help="skip verification; the manifest says unverified"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be done, with estimated memory, time and disk; loads no weights",
    )
    parser.add_argument("--json", action="store_true", help="results as JSON on stdout")
    return parser


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export list", description="Families, targets, recipes, components."
    )
    parser.add_argument("--json", action="store_true", help="the list as JSON on stdout")
    return parser


def _verify_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export verify",
        description="Check a bundle again: every hash, then every number against eager.",
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="what the bundle was made from (default: the embedded tiny model)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=1000,
        help="decode steps of the long run (default: 1000), at most what the cache holds, and 200 in a second precision",
    )
    parser.add_argument(
        "--compute-precision",
        choices=("float16", "float32"),
        help="Core ML bundles: every check in this precision of the reference executor (default: float16, then float32)",
    )
    parser.add_argument(
        "--compute-units",
        choices=("all", "cpu", "cpu_and_gpu", "cpu_and_ne"),
        help="Core ML bundles, on macOS (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    return parser


def _trace_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export trace", description="Every intermediate value of an utterance, from eager."
    )
    _add_plan(parser)
    parser.add_argument(
        "--target",
        metavar="TARGET",
        help="whose activation arithmetic to use with a quantised model (default: floats)",
    )
    parser.add_argument(
        "--compute-precision",
        choices=("float16", "float32"),
        help="of the Core ML bundle that this is compared with (default: float16)",
    )
    parser.add_argument("--inputs", type=Path, required=True, metavar="IN.npz")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.npz")
    parser.add_argument(
        "--live", action="store_true", help="speech to text: in steps of 80 ms, as in a live stream"
    )
    parser.add_argument("--json", action="store_true", help="shapes of what was written, as JSON on stdout")
    return parser


def _bench_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export bench",
        description="Times the published weights in eager torch, in bfloat16: what `runtime bench --compare eager` calls.",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="folder as published (default: the embedded tiny model)",
    )
    parser.add_argument("--model", metavar="NAME", help="as in export (default: voxtral-tts)")
    for name, default in (("frames", 50), ("prompt-tokens", 20), ("voice-rows", 200)):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"as in `runtime bench` (default: {default})",
        )
    parser.add_argument("--threads", type=int, metavar="N", help="of torch (default: all cores)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
