"""Codes of Qwen3-TTS over 1,000 frames, for every recipe and target, without the other checks of `verify`.

    long_codes.py --targets onnx,executorch,coreml --recipes none,w8,w8g128,w4,w4g128,8da4w,lut4 \\
        --folder FOLDER -o OUT.json

The checkpoint is the embedded model with inner widths that groups of 128 divide, without encoders. A recipe
that a target does not hold is left out. `w4/w4` is `w4` with a code predictor of 4 bits. Core ML bundles of
half precision run in both precisions. Those of `--compute-precision float32` run in single precision.

OUT.json is written after each bundle; a row that it has already is not made again. Each bundle is removed
after it was read. `--table` prints OUT.json as Markdown, and exports nothing.
"""

import argparse
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.export.model import Export
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target, target_of_job
from voxport.export.verify.comparison import Assertion, Measurement, Result
from voxport.export.verify.context import open_context
from voxport.export.verify.long_codes import check_long_codes
from voxport.export.verify.modes import VerifyOptions, modes
from voxport.model.qwen3_tts import sizes
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.quantize.recipe import RECIPES
from voxport.runtime.machine import describe_machine

FAMILY, SIZE = "qwen3_tts", "wide-custom-voice"
PROMPT_ROWS = 32  # above those of the prompt of verification
REPORTS = {  # key of a row -> end of the name of a report
    "codes": "artifact and full precision",
    "quarters": "by quarter",
    "free_run": "frames",
    "end": "frames, artifact",
    "full_end": "frames, full precision",
}
PREDICTOR = "code_predictor"
log = logging.getLogger(__name__)
Row = Json


def add_size() -> None:
    """`wide`: as `tiny`, with inner widths that groups of 128 divide."""
    tiny = sizes.SIZES["tiny"]
    talker = {"hidden_size": 256, "intermediate_size": 384}
    predictor = {"hidden_size": 128, "intermediate_size": 256}
    sizes.SIZES["wide"] = replace(tiny, talker=tiny.talker | talker, predictor=tiny.predictor | predictor)


@dataclass(frozen=True)
class Settings:
    """What all bundles of a run share. `options` are those of the export."""

    checkpoint: Path
    bundle: Path  # folder, removed after each measurement
    frames: int
    options: tuple[str, ...]


def measure(settings: Settings, target: str, recipe: str) -> dict[str, Row]:
    """What the check over many frames finds, for each precision that the bundle is verified in."""
    checkpoint, folder, frames = settings.checkpoint, settings.bundle, settings.frames
    whole, _, predictor = recipe.partition("/")
    options = [
        *settings.options,
        "--checkpoint",
        str(checkpoint),
        "--target",
        target,
        "--quant",
        whole,
        "--no-verify",
    ]
    options += ["--quant-for", f"{PREDICTOR}={predictor}"] if predictor else []
    options += ["--cache-length", str(frames + PROMPT_ROWS), "--force", "--out", str(folder)]
    if export(options):
        raise SystemExit(f"{target} {recipe}: export failed")
    bundle = Bundle(folder)
    resolved, lowered = resolve(Source(checkpoint), bundle.job.request), target_of_job(bundle.job)
    made = Export(resolved, lowered, bundle.job)
    for graph in made.model.graphs():  # loads it
        log.info("%s %s: %s", target, recipe, graph.name)
    found: dict[str, Row] = {}
    is_float16 = bundle.job.compute_precision == "float16"
    for mode in modes(resolved, lowered, VerifyOptions()):
        # no runtime has float activations in place of integers, or rounds values of a float32 bundle
        if not mode.float_activations and (is_float16 or mode.engine.compute_precision != "float16"):
            started = time.perf_counter()
            extent = replace(mode.extent, frames=frames)
            context = open_context(bundle, made, replace(mode, extent=extent))
            row = summary(check_long_codes(context))
            precision = mode.engine.compute_precision or bundle.job.compute_precision
            found[precision] = row | {"seconds": round(time.perf_counter() - started, 1)}
    shutil.rmtree(folder)
    return found


def summary(results: Iterable[Result]) -> Row:
    """Checks by name, and the values of each report by the end of its name."""
    row: Row = {"checks": {}}
    for result in results:
        if isinstance(result, Assertion):
            row["checks"][result.name] = {"passed": result.passed, "detail": result.detail}
        for key, end in REPORTS.items():
            if isinstance(result, Measurement) and result.name.endswith(end):
                row[key] = result.values
    return row


def table(rows: dict[str, dict[str, Row]]) -> str:
    """A line for each bundle and precision. Codes in per cent of those of full precision."""
    books = max(len(row["codes"]) for precisions in rows.values() for row in precisions.values())
    headings = [*map(str, range(books)), "first quarter", "last quarter", "free run", "end", "verdict"]
    lines = [f"| bundle | {' | '.join(headings)} |", "|---" * (len(headings) + 1) + "|"]
    for name, precisions in rows.items():
        for precision, row in precisions.items():
            quarters = list(row["quarters"].values())
            shares = [*row["codes"].values(), quarters[0], quarters[-1]]
            passed = all(check["passed"] for check in row["checks"].values())
            cells = [
                *(f"{100 * share:.1f}" for share in shares),
                str(row["free_run"]["equal_frames"]),
                f"{row['end']['end_db']:.1f} dB",
                "passed" if passed else "failed",
            ]
            label = f"{name}, {precision}" if len(precisions) > 1 else name
            lines.append(f"| {label.replace('/', ' ', 1)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def holds(target: str, recipe: str) -> bool:
    return all(open_target(target).holds(scheme) for scheme in RECIPES[recipe.partition("/")[0]].schemes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--targets", default="onnx,executorch,coreml")
    parser.add_argument("--recipes", default="none,w8,w8g128,w4,w4g128,8da4w,lut4")
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--compute-precision", help="of the bundles (default: that of the target)")
    parser.add_argument("--folder", type=Path, help="folder of checkpoints and bundles")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--table", action="store_true", help="print the table of OUT.json")
    arguments = parser.parse_args()
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"rows": {}}
    if arguments.table:
        print(table(content["rows"]))
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    add_size()
    checkpoint = arguments.folder / "wide"
    if not checkpoint.exists():
        write_checkpoint(checkpoint, SIZE, key=FAMILY)
    precision = arguments.compute_precision
    options = ("--compute-precision", precision) if precision else ()
    bundle = arguments.folder / f"bundle-{os.getpid()}"
    settings = Settings(checkpoint, bundle, arguments.frames, options)
    for target in arguments.targets.split(","):
        for recipe in arguments.recipes.split(","):
            key = f"{target}/{recipe}" + (f", {precision} bundle" if precision else "")
            if key in content["rows"] or not holds(target, recipe):
                continue
            content["rows"][key] = measure(settings, target, recipe)
            content["frames"] = arguments.frames
            content["machine"] = describe_machine(None, "torch")
            log.info("%s: %s", key, json.dumps(content["rows"][key]))
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
