"""Measures what calibration does to the codes of a model with random weights.

    python -m tools.calibration_figures qwen3-tts --seed 0 --outliers --recipe w4 --out FOLDER
    python -m tools.calibration_figures qwen3-tts --recipe w4,code_predictor=w4g128 --recipe w8 --out FOLDER
    python -m tools.figures calibration "qwen3-tts w4, outliers" FOLDER/qwen3-tts-small-w4-outliers-*.json

FOLDER gets a file for each recipe: shares of codes as in full precision, which has the same history, with and
without calibration. The codes are of verification's fixed run, whose prompt or sound is random. Calibration
has its built-in sentences or recordings. Everything runs in eager PyTorch with the arithmetic of ONNX.
"""

import argparse
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import ExportRequest
from voxport.export.calibration.data import data_of
from voxport.export.calibration.free_run import record_run
from voxport.export.calibration.mixture import Budget, rules_of
from voxport.export.calibration.record import Call
from voxport.export.calibration.run import write_statistics
from voxport.export.job import make_job
from voxport.export.model import Model
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.targets import open_target
from voxport.export.verify.eager import EagerEngine
from voxport.model.families import FAMILIES, public_name
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.model.synthetic.outliers import Outliers
from voxport.quantize.calibration import Calibration
from voxport.quantize.parallel import one_thread
from voxport.quantize.recipe import AUTO, AUTO_BASE, Recipe
from voxport.runtime.families import open_family
from voxport.runtime.families.workload import ForcedRun
from voxport.runtime.machine import describe_machine

STEPS = 100
TARGET = open_target("onnx", "float32")
Calls = Sequence[tuple[str, Call]]
log = logging.getLogger(__name__)


def measured(
    resolved: Resolved, calls: Calls, full: ForcedRun, folder: Path, bits: float | None = None
) -> Json:
    """Shares of equal codes of a recipe, or of a mixture of so many bits. `folder` may have steps of the
    calibration.
    """
    auto = (Budget(bits), TARGET) if bits else None
    with one_thread():
        found = Calibration(write_statistics(resolved, calls, folder, auto))
    rules = (*resolved.request.rules, *rules_of(found.mixture))
    resolved = resolve(resolved.source, resolved.request.model_copy(update={"rules": rules}))
    log.info("rules: %s", " ".join(rules))
    calibrated = replace(resolved, calibration=found)
    return {
        "plain": _equal(forced(resolved, full), full),
        "calibrated": _equal(forced(calibrated, full), full),
    }


def request_of(recipe: str) -> ExportRequest:
    """`RECIPE`, `RECIPE,COMPONENT=RECIPE` or, with a pattern of paths, `RECIPE,*.wv=RECIPE`. `auto@BITS` is a
    mixture.
    """
    name, *others = recipe.split(",")
    rules = tuple(other for other in others if "*" in other)
    pairs = (other.partition("=") for other in others if other not in rules)
    quant_for = tuple((component, own) for component, _, own in pairs)
    name = AUTO_BASE if bits_of(recipe) else name
    return ExportRequest(quant=name, quant_for=quant_for, rules=rules)


def bits_of(recipe: str) -> float | None:
    """The bits of a mixture."""
    name, _, bits = recipe.partition(",")[0].partition("@")
    return float(bits) if name == AUTO else None


def forced(resolved: Resolved, full: ForcedRun | None = None) -> ForcedRun:
    """A run with the arithmetic of the target, with the history of full precision."""
    model = Model(resolved, TARGET.layout)
    engine = EagerEngine(model.components, model.module, TARGET.layout, TARGET.linear_kernel)
    run = open_family(resolved.source.family.name).verification.teacher_forced_run
    return run(engine.stream(), resolved.constants, STEPS, full.codes if full else None)


def _equal(found: ForcedRun, full: ForcedRun) -> dict[str, float]:
    """In per cent: the first code or the token, and the other codes. And the distance of hidden states."""
    equal = 100 * (found.codes == full.codes)
    distance = np.linalg.norm(found.hidden - full.hidden) / np.linalg.norm(full.hidden)
    shares = {"first": float(equal[:, 0].mean()), "distance": float(distance)}
    return shares | ({"others": float(equal[:, 1:].mean())} if equal.shape[1] > 1 else {})


def measure_checkpoint(arguments: argparse.Namespace, folder: Path) -> None:
    """Writes a file for each recipe that has none yet."""
    parts = arguments.family, arguments.size
    kind = "outliers" if arguments.outliers else "plain"
    names = {each: f"{'-'.join(parts)}-{each}-{kind}-{arguments.seed}.json" for each in arguments.recipe}
    missing = {each: arguments.out / name for each, name in names.items()}
    missing = {each: path for each, path in missing.items() if not path.exists()}
    if not missing:
        return
    key = next(each for each in FAMILIES if public_name(each) == arguments.family)
    plant = Outliers if arguments.outliers else None
    write_checkpoint(folder / "checkpoint", arguments.size, arguments.seed, key, plant)
    source = Source(folder / "checkpoint")
    resolved, earlier = resolve(source, request_of(next(iter(missing)))), dict[tuple[str, Recipe], Path]()
    sentences = data_of(resolved, Path()).sentences[: arguments.sentences]
    with one_thread():
        calls = record_run(resolved, make_job(resolved, TARGET, "calibration"), sentences)
    log.info("%d calls of %d sentences", len(calls), len(sentences))
    full = forced(resolved.in_full_precision())
    for number, (recipe, path) in enumerate(missing.items()):
        own, resolved = folder / str(number), resolve(source, request_of(recipe))
        own.mkdir()
        for graph, other in resolved.recipes.items():  # as before, unless its recipe is new
            for step in earlier[graph, other].glob(f"{graph}.*") if (graph, other) in earlier else ():
                shutil.copy(step, own)
            earlier[graph, other] = own
        found = measured(resolved, calls, full, own, bits_of(recipe))
        log.info("%s: %s", path.stem, found)
        conditions = {"seed": arguments.seed, "frames": STEPS, "machine": describe_machine(None, "torch")}
        path.write_text(json.dumps({**conditions, **found}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("family", choices=[public_name(each) for each in FAMILIES])
    parser.add_argument("--size", default="small", help="size of the checkpoint (default: small)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument("--outliers", action="store_true", help="plant outlier channels")
    parser.add_argument("--recipe", action="append", required=True, metavar="RECIPE[,COMPONENT=RECIPE]")
    parser.add_argument("--sentences", type=int, help="sentences of the calibration (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out) as folder:
        measure_checkpoint(arguments, Path(folder))


if __name__ == "__main__":
    main()
