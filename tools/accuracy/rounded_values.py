"""Differences of the values that acoustic codes are rounded from, on right bundles with integer activations.

    rounded_values.py --targets onnx,executorch --recipes w8,w4 --seeds 8 --folder FOLDER -o OUT.json

Exports the embedded Voxtral-TTS. Each seed gives another prompt and noise, for the bundle and for eager with
and without rounding of activations. OUT.json has the result of `compare_values` for each run.

It also has the shares of simulated artifacts that fail which round independently of eager: by the bars of the
largest difference and of the root mean square, and by the counts that verification uses. A simulated run
draws steps from the roundings of all measured runs, with random signs.
"""

import argparse
import json
import logging
from pathlib import Path

import numpy as np

import runtime.families.voxtral_tts.verification as workload
from bundle.json_types import Json
from bundle.manifest import Bundle
from export.__main__ import main as export
from export.model import Export
from export.resolve import Source, resolve
from export.targets import target_of_job
from export.verify.code_checks import compare_values
from export.verify.comparison import ROUNDING_FACTOR
from export.verify.context import WHOLE, Context
from export.verify.modes import VerifyOptions, modes
from export.verify.run import open_context
from model.embedded import trained_checkpoint
from runtime.families import read_constants
from runtime.families.base import ForcedRun
from runtime.machine import describe_machine
from tools.verdicts import changed

SIMULATED = 2000
log = logging.getLogger(__name__)


def open_bundle(bundle: Bundle, checkpoint: Path) -> Context:
    """The engines in the arithmetic that the runtime has."""
    resolved = resolve(Source(checkpoint), bundle.job.request)
    made = Export(resolved, target_of_job(bundle.job), bundle.job)
    for graph in made.model.graphs():
        log.info("%s: %s", bundle.folder.name, graph.name)
    as_run = [mode for mode in modes(resolved, made.target, VerifyOptions()) if not mode.float_activations]
    return open_context(bundle, made, as_run[0])


def run(context: Context, bundle: Bundle, seed: int) -> tuple[ForcedRun, ForcedRun, ForcedRun]:
    """Eager, the artifact, and eager without rounding."""
    constants, steps, engines = read_constants(bundle.job), WHOLE.run_steps, context.engines
    with changed(workload, "SEED", seed):
        eager = workload.teacher_forced_run(engines.eager.stream(), constants, steps)
        artifact, unrounded = (
            workload.teacher_forced_run(engine.stream(), constants, steps, eager.codes)
            for engine in (engines.artifact, engines.unrounded)
        )
        return eager, artifact, unrounded


def simulate(runs: list[tuple[ForcedRun, ForcedRun, ForcedRun]], float_bar: float) -> Json:
    """Shares of simulated artifacts that fail."""
    steps = WHOLE.run_steps
    pool = np.concatenate(
        [side.values - unrounded.values for *sides, unrounded in runs for side in sides], dtype=np.float32
    )
    unrounded, generator, failed = runs[0][2], np.random.default_rng(0), np.zeros(3)
    for _ in range(SIMULATED):
        rows, signs = generator.integers(0, len(pool), (2, steps)), generator.choice([-1, 1], (2, steps, 1))
        eager, artifact = (
            ForcedRun(unrounded.codes, unrounded.logits, unrounded.hidden, values=unrounded.values + error)
            for error in signs * pool[rows]
        )
        difference, rounding = artifact.values - eager.values, unrounded.values - eager.values
        failed[0] += np.abs(difference).max() > ROUNDING_FACTOR * np.abs(rounding).max()
        failed[1] += np.square(difference).mean() > ROUNDING_FACTOR**2 * np.square(rounding).mean()
        failed[2] += not compare_values(eager, artifact, unrounded, float_bar).passed
    names = ("largest_difference", "root_mean_square", "counts")
    return {"runs": SIMULATED} | dict(zip(names, failed / SIMULATED, strict=True))


def measure(bundle: Bundle, checkpoint: Path, seeds: int) -> Json:
    context = open_bundle(bundle, checkpoint)
    bar = context.bars.lowering
    runs = [run(context, bundle, seed) for seed in range(seeds)]
    checks = [compare_values(eager, found, unrounded, bar) for eager, found, unrounded in runs]
    return {
        "failed": sum(not check.passed for check in checks),
        "runs": [check.detail for check in checks],
        "simulated_failures": simulate(runs, bar),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--targets", default="onnx,executorch")
    parser.add_argument("--recipes", default="w8,w4", help="with integer activations (default: w8,w4)")
    parser.add_argument("--seeds", type=int, default=8, help="of prompts and noise (default: 8)")
    parser.add_argument("--folder", type=Path, required=True, help="folder of bundles; one is not made again")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    checkpoint = trained_checkpoint("voxtral_tts")
    result: Json = {"machine": describe_machine(None, "onnxruntime"), "bundles": {}}
    for target in arguments.targets.split(","):
        for recipe in arguments.recipes.split(","):
            folder = arguments.folder / f"{target}-{recipe}"
            options = ["--checkpoint", str(checkpoint), "--target", target, "--quant", recipe, "--no-verify"]
            if not folder.exists() and export([*options, "--out", str(folder)]):
                raise SystemExit(f"{folder}: export failed")
            row = measure(Bundle(folder), checkpoint, arguments.seeds)
            log.info("%s: %s", folder.name, json.dumps(row["simulated_failures"]))
            result["bundles"][folder.name] = row
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
