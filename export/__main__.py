"""`python -m export`: a checkpoint becomes verified bundles. `--help` answers without importing torch."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

USAGE, FAILED, INTERRUPTED = 2, 3, 130
COMMANDS = ("list", "verify", "trace")
log = logging.getLogger("export")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 2 usage, 3 export failed, 4 verification failed, 5 integrity."""
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv and argv[0] in COMMANDS else "build"
    parser = {"build": _build_parser, "list": _list_parser, "verify": _verify_parser, "trace": _trace_parser}[command]()
    arguments = parser.parse_args(argv[1:] if command != "build" else argv)
    _set_up_logging()
    try:
        from export import commands

        return getattr(commands, f"{command}_command")(arguments)
    except KeyboardInterrupt:
        print("voxport: interrupted; nothing was left behind", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        print(f"voxport: error: {error}", file=sys.stderr)
        return error.exit_code


def _set_up_logging() -> None:
    """Our own progress on stderr; what torch and the converters log below an error helps nobody here."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(elapsed)s %(message)s", force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_add_elapsed)
    for name in ("export", "runtime", "model"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)


def _add_elapsed(record: logging.LogRecord) -> bool:
    record.elapsed = f"[{record.relativeCreated / 1000:6.1f}s]"
    return True


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="folder as published (default: the embedded tiny model with random weights)")
    parser.add_argument("--quant", default="none", metavar="RECIPE", help="none, w8, w4 or 8da4w (default: none)")
    parser.add_argument("--quant-for", action="append", default=[], metavar="COMPONENT=RECIPE", help="another recipe for one component; may be repeated")
    parser.add_argument("--quant-rule", action="append", default=[], metavar="PATTERN=RECIPE", help="for module paths that match, asked before all else")
    parser.add_argument("--first-frame", choices=("audio_token", "prefill"), default="audio_token", help="where frame 0 comes from")
    parser.add_argument("--alibi-slopes", choices=("mistral", "standard"), default="mistral", help="slopes of the codec's attention")
    parser.add_argument("--cache-length", type=int, default=2048, metavar="ROWS", help="rows of the KV cache: prompt and frames (default: 2048)")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Export a speech checkpoint to ONNX, ExecuTorch or Core ML, quantised and verified.",
        epilog="Other commands: python -m export list | verify BUNDLE | trace (each with --help).",
    )
    parser.add_argument("--target", required=True, metavar="TARGETS", help="onnx, executorch, coreml, or several with commas")
    _add_plan(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the bundle's folder (default: artifacts/NAME-TARGET-RECIPE)")
    parser.add_argument("--force", action="store_true", help="replace whatever the output folder holds")
    parser.add_argument("--no-verify", action="store_true", help="skip verification; the manifest says unverified")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, with estimated memory and disk; loads no weights")
    parser.add_argument("--json", action="store_true", help="results as JSON on stdout")
    return parser


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m export list", description="Families, targets, recipes, components.")
    parser.add_argument("--json", action="store_true")
    return parser


def _verify_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m export verify", description="Check a bundle again: every hash, then every number against eager.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="what the bundle was made from (default: the embedded tiny model)")
    parser.add_argument("--steps", type=int, default=1000, help="decode steps of the long run (default: 1000)")
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    return parser


def _trace_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m export trace", description="Every intermediate value of an utterance, from eager.")
    _add_plan(parser)
    parser.add_argument("--target", metavar="TARGET", help="whose activation arithmetic to use with a quantised model (default: floats)")
    parser.add_argument("--inputs", type=Path, required=True, metavar="IN.npz")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.npz")
    return parser


if __name__ == "__main__":
    sys.exit(main())
