"""Exports synthetic checkpoints of Qwen3-TTS with every recipe, and collects what verification says.

    recipe_verdicts.py --size tiny --variants custom-voice,voice-design --targets onnx,executorch,coreml \\
        --recipes none,w8,w4,8da4w,lut4 --folder FOLDER -o OUT.json -- --cache-length 192

Options after -- go to `voxport export`. A recipe that a target does not hold is left out. OUT.json is written
after each bundle; a row that it has already is not made again. Each bundle is removed after it was read.
`--table` prints the rows of OUT.json as Markdown, and exports nothing.
`long_codes.py` shows the codes over 1,000 frames.
"""

import argparse
import json
import logging
import shutil
import sys
import time
from pathlib import Path

from voxport.bundle.errors import VoxportError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle, Verification
from voxport.cli.main import INTERRUPTED
from voxport.export.__main__ import main as export
from voxport.export.targets import open_target
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.quantize.recipe import RECIPES
from voxport.runtime.machine import describe_machine

FAMILY, BASE = "qwen3_tts", "base"
FRAMES = " frames"  # in the names of reports over many frames, and how these end before the precision:
SHARES, QUARTERS, END = "artifact and full precision", "by quarter", "frames, artifact"
log = logging.getLogger(__name__)
Row = Json


def summary(verification: Verification) -> Row:
    """Counts of checks, those that failed, the smallest margin, and shares of equal codes."""
    done = [row for row in verification.rows if not row.get("left_out")]
    names = [f"{row.get('component', '')} {row.get('output', '')} {row['check']}".strip() for row in done]
    margins = [row["margin"] for row in done if row.get("margin") is not None]
    reports = verification.reports

    def report(end: str) -> dict[str, float]:
        ends = tuple(f"{end}{precision}" for precision in ("", ", float32", ", float16"))
        return next(
            (values for name, values in reports.items() if FRAMES in name and name.endswith(ends)), {}
        )

    return {
        "status": verification.status,
        "checks": len(done),
        "failed": [name for name, row in zip(names, done, strict=True) if not row["passed"]],
        "smallest_margin": min(margins, default=None),
        "codes": report(SHARES),
        "quarters": report(QUARTERS),
        "end": report(END),
    }


def measure(checkpoint: Path, target: str, recipe: str, folder: Path, options: list[str]) -> Row:
    """The verdict of one bundle; only the exit code where verification refuses it."""
    arguments = ["--checkpoint", str(checkpoint), "--target", target, "--quant", recipe, *options]
    started = time.perf_counter()
    code = export([*arguments, "--force", "--out", str(folder)])
    if code == INTERRUPTED:
        sys.exit(code)
    row = summary(Bundle(folder).manifest.verification) if code == 0 else {"status": "failed", "exit": code}
    shutil.rmtree(folder, ignore_errors=True)
    seconds = round(time.perf_counter() - started, 1)
    return {**row, "seconds": seconds, "machine": describe_machine(None, "torch")}


def holds(target: str, recipe: str) -> bool:
    return all(open_target(target).holds(scheme) for scheme in RECIPES[recipe].schemes)


def _rank(key: str) -> tuple[str, str, int]:
    variant, target, recipe = key.split("/")
    return variant, target, list(RECIPES).index(recipe)


def verdict_table(rows: dict[str, Row]) -> str:
    """One line for each bundle, by variant, target and recipe."""
    lines = [
        "| variant | target | recipe | verdict | checks | smallest margin |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items(), key=lambda item: _rank(item[0])):
        margin = row.get("smallest_margin")
        cells = [*name.split("/"), row["status"], row.get("checks", "-"), margin and f"{margin:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--variants", default=BASE)
    parser.add_argument("--targets", default="onnx,executorch,coreml")
    parser.add_argument("--recipes", default="none,w8,w4,8da4w,lut4")
    parser.add_argument("--folder", type=Path, help="folder of checkpoints and bundles")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--table", action="store_true", help="print the tables of OUT.json")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    rows: dict[str, Row] = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else {}
    if arguments.table:
        print(verdict_table(rows))
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for variant in arguments.variants.split(","):
        name = arguments.size if variant == BASE else f"{arguments.size}-{variant}"
        checkpoint = arguments.folder / name
        if not checkpoint.exists():
            write_checkpoint(checkpoint, name, key=FAMILY)
        for target in arguments.targets.split(","):
            for recipe in arguments.recipes.split(","):
                key = f"{name}/{target}/{recipe}"
                if key in rows or not holds(target, recipe):
                    continue
                try:
                    rows[key] = measure(checkpoint, target, recipe, arguments.folder / "bundle", options)
                except VoxportError as error:
                    rows[key] = {"status": "refused", "error": str(error)}
                log.info("%s: %s", key, json.dumps(rows[key]))
                content = {"options": options, "rows": rows}
                arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
