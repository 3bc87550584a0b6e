"""Differences of the values that acoustic codes are rounded from, on right bundles with integer activations.

    rounded_values.py --targets onnx,executorch --recipes w8,w4 --seeds 8 --folder FOLDER -o OUT.json

Exports a checkpoint of Voxtral-TTS (default: the embedded one). Each seed gives another prompt and noise, for
the bundle and for eager with and without rounding of activations. OUT.json has the result of `compare_values`
for each run, and by how much the largest difference and the root mean square are larger than those of
rounding in eager.

It also has shares of simulated artifacts that round independently of eager: of those that `compare_values`
refuses, and of those where one of these two ratios is above 2. A simulated run draws its steps, with random
signs, from the roundings of all measured runs. So it assumes that steps are independent.
"""

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

import voxport.runtime.families.voxtral_tts.verification as workload
from tools.verdicts import changed
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.export.model import Export
from voxport.export.resolve import Source, resolve
from voxport.export.targets import target_of_job
from voxport.export.verify.code_checks import compare_values
from voxport.export.verify.comparison import ROUNDING_FACTOR
from voxport.export.verify.context import Context, open_context
from voxport.export.verify.modes import WHOLE, VerifyOptions, modes
from voxport.model.embedded import trained_checkpoint
from voxport.runtime.families import read_constants
from voxport.runtime.families.base import ForcedRun
from voxport.runtime.machine import describe_machine

SIMULATED = 2000
log = logging.getLogger(__name__)
Runs = tuple[ForcedRun, ForcedRun, ForcedRun]


def open_bundle(bundle: Bundle, checkpoint: Path) -> Context:
    """The engines in the arithmetic that the runtime has."""
    resolved = resolve(Source(checkpoint), bundle.job.request)
    made = Export(resolved, target_of_job(bundle.job), bundle.job)
    for graph in made.model.graphs():  # quantises its weights
        log.info("%s: %s", bundle.folder.name, graph.name)
    as_run = [mode for mode in modes(resolved, made.target, VerifyOptions()) if not mode.float_activations]
    return open_context(bundle, made, as_run[0])


def run(context: Context, bundle: Bundle, seed: int, steps: int) -> Runs:
    """Eager, the artifact, and eager without rounding."""
    constants, engines = read_constants(bundle.job), context.engines
    with changed(workload, "SEED", seed):
        eager = workload.teacher_forced_run(engines.eager.stream(), constants, steps)
        artifact, unrounded = (
            workload.teacher_forced_run(engine.stream(), constants, steps, eager.codes)
            for engine in (engines.artifact, engines.unrounded)
        )
        return eager, artifact, unrounded


def ratios(eager: ForcedRun, found: ForcedRun, unrounded: ForcedRun) -> tuple[float, float]:
    """Of the difference to the rounding in eager: of the largest values, and of the root mean squares."""
    sizes = [
        (np.abs(difference).max(), np.sqrt(np.square(difference).mean()))
        for difference in (found.values - eager.values, unrounded.values - eager.values)
    ]
    largest, mean = (float(of_found / of_eager) for of_found, of_eager in zip(*sizes, strict=True))
    return largest, mean


def simulate(runs: list[Runs], float_bar: float) -> Json:
    """Shares of simulated artifacts."""
    pool = np.concatenate([side.values - unrounded.values for *sides, unrounded in runs for side in sides])
    unrounded, generator = runs[0][2], np.random.default_rng(0)
    steps, refused, found = len(unrounded.values), 0, []
    for _ in range(SIMULATED):
        rows, signs = generator.integers(0, len(pool), (2, steps)), generator.choice([-1, 1], (2, steps, 1))
        eager, artifact = (
            replace(unrounded, values=unrounded.values + error) for error in signs * pool[rows]
        )
        refused += not compare_values(eager, artifact, unrounded, float_bar).passed
        found.append(ratios(eager, artifact, unrounded))
    above = (np.array(found) > ROUNDING_FACTOR).mean(axis=0)
    return {
        "runs": SIMULATED,
        "refused": refused / SIMULATED,
        "largest_above_2": float(above[0]),
        "root_mean_square_above_2": float(above[1]),
    }


def measure(bundle: Bundle, checkpoint: Path, seeds: int, steps: int) -> Json:
    context = open_bundle(bundle, checkpoint)
    bar = context.bars.lowering
    runs = []
    for seed in range(seeds):
        runs.append(run(context, bundle, seed, steps))
        log.info("%s: seed %d", bundle.folder.name, seed)
    checks = [compare_values(eager, found, unrounded, bar) for eager, found, unrounded in runs]
    largest, mean = zip(*(ratios(*sides) for sides in runs), strict=True)
    return {
        "failed": sum(not check.passed for check in checks),
        "runs": [check.detail for check in checks],
        "largest_ratio": largest,
        "root_mean_square_ratio": mean,
        "simulated": simulate(runs, bar),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--targets", default="onnx,executorch")
    parser.add_argument("--recipes", default="w8,w4", help="with integer activations (default: w8,w4)")
    parser.add_argument("--seeds", type=int, default=8, help="of prompts and noise (default: 8)")
    parser.add_argument("--steps", type=int, default=WHOLE.run_steps, help="of a run (default: 40)")
    parser.add_argument("--checkpoint", type=Path, help="(default: the embedded one)")
    parser.add_argument("--options", default="", help="of the export, in one text")
    parser.add_argument("--folder", type=Path, required=True, help="folder of bundles; one is not made again")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    checkpoint = arguments.checkpoint or trained_checkpoint("voxtral_tts")
    result: Json = {"machine": describe_machine(None, "torch"), "steps": arguments.steps, "bundles": {}}
    for target in arguments.targets.split(","):
        for recipe in arguments.recipes.split(","):
            folder = arguments.folder / f"{target}-{recipe}"
            options = ["--checkpoint", str(checkpoint), "--target", target, "--quant", recipe, "--no-verify"]
            options += arguments.options.split()
            if not folder.exists() and export([*options, "--out", str(folder)]):
                raise SystemExit(f"{folder}: export failed")
            row = measure(Bundle(folder), checkpoint, arguments.seeds, arguments.steps)
            log.info("%s: %s", folder.name, json.dumps(row["simulated"]))
            result["bundles"][folder.name] = row
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
