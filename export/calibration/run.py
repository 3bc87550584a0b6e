"""`calibrate`: writes what real inputs say about the weights of a checkpoint."""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import torch
from safetensors import SafetensorError

from voxport.bundle.errors import ExportError, UsageError
from voxport.bundle.manifest import ExportJob
from voxport.bundle.user_cache import private_folder
from voxport.export.calibration.channels import choose_changes, schemes_of
from voxport.export.calibration.data import RECORDINGS, STATISTICS, CalibrationData, data_of, is_listener
from voxport.export.calibration.free_run import frames_of, record_run
from voxport.export.calibration.graph import GraphReplay, has_quantised_linears
from voxport.export.calibration.mixture import (
    Budget,
    Choice,
    check_budget,
    expected_losses,
    held_recipes,
    mixture,
    rules_of,
)
from voxport.export.calibration.record import Call
from voxport.export.calibration.store import (
    FOLDER,
    GIVEN,
    find_calibration,
    keep,
    keep_copy,
    made_before,
    read_calibration,
)
from voxport.export.estimate import calibration_estimate
from voxport.export.evaluation.sentences import Sentence
from voxport.export.job import ROOT, lowering_key, make_job
from voxport.export.memory import check_memory
from voxport.export.resolve import Resolved, resolve
from voxport.export.staging import locked
from voxport.export.targets.base import Target
from voxport.export.verify.worst_linears import describe_worst
from voxport.model.checkpoint import Checkpoint
from voxport.model.layers.channels import ChannelChanges, channels_of
from voxport.quantize.calibration import (
    AGAIN,
    LEAST_ROWS,
    Calibration,
    Share,
    StoredWeights,
    save_calibration,
    save_rows,
)
from voxport.quantize.parallel import one_thread
from voxport.quantize.recipe import AUTO
from voxport.quantize.rounding import RoundingLoss

EXPIRY = 30 * 24 * 3600  # seconds after which an interrupted calibration is given up
CODE_OF_RUN = (
    "runtime/*.py",
    "runtime/families/**/*.py",
    "runtime/text/*.py",
    "runtime/audio/*.py",
    "export/verify/eager.py",
    "export/evaluation/s*.py",  # sentences, speech, sweep
)
Auto = tuple[Budget, Target]  # a mixture within the budget, of what the target holds
log = logging.getLogger(__name__)


def calibrated(resolved: Resolved, target: Target, given: Path, budget: Budget | None = None) -> Resolved:
    """The same export with statistics, which are in the cache folder. They are made unless they are there.

    `given` is a file of statistics, or data as for `from_folder`; an empty path: the built-in data. With a
    `budget`, rules choose a mixture beside `AUTO_BASE`, which `resolved` has. Raises UsageError or
    RecipeError.
    """
    if not any(recipe.schemes for recipe in resolved.recipes.values()):
        raise UsageError("the recipe quantises nothing; leave it out, or choose another", field="calibrate")
    if not any(has_quantised_linears(resolved, graph) for graph in resolved.graphs):
        raise UsageError("the recipe quantises no linear that a calibration can look at", field="calibrate")
    if budget:
        check_budget(resolved, budget, target)
    sha256 = (
        _given(resolved, given, budget)
        if given.suffix == STATISTICS
        else _made(resolved, target, given, budget)
    )
    found = find_calibration(sha256)
    resolved = _resolved(resolved, found.mixture, sha256)
    schemes, errors = schemes_of(resolved), found.rounding_errors
    losses = {
        path: RoundingLoss(error, schemes[path])
        for path, error in errors.items()
        if path in schemes and schemes[path].integer_activations(target.has_integer_kernels)
    }
    if worst := describe_worst(losses, target):
        log.warning("calibration: %s", worst)
    return resolved


def _given(resolved: Resolved, given: Path, budget: Budget | None) -> str:
    found, problem = read_calibration(given), ""
    made_for = Budget(**found.budget) if found.budget else None
    widths = {channels.writer: channels.width for channels in channels_of(resolved.source.root())}
    changed = {path: len(each) for path, each in found.exponents.items()}
    changed |= {path: each.shape[0] * each.shape[1] for path, each in found.rotations.items()}
    if foreign := found.schemes.keys() - resolved.source.quantizable:
        problem = f"its statistics are of another model, which has {min(foreign)}"
    elif other := [path for path, width in changed.items() if widths.get(path) != width]:
        problem = f"its statistics are of another model, whose {other[0]} has {changed[other[0]]} channels"
    elif found.mixture and not made_for:
        problem = f"its mixture has no budget; {AGAIN}"
    elif budget and not made_for:
        problem = "its statistics have no mixture; give texts or recordings"
    elif made_for and made_for != budget:
        problem = f"its statistics are for the recipe {AUTO} with {made_for}; give that"
    if problem:
        raise UsageError(f"{given}: {problem}", field="calibrate")
    return keep_copy(given, GIVEN)


def _made(resolved: Resolved, target: Target, given: Path, budget: Budget | None) -> str:
    data, job = data_of(resolved, given), make_job(resolved, target, "calibration")
    kept, base = private_folder(FOLDER), _key(resolved, job, data)
    key = _digest([base, asdict(budget), held_recipes(target)]) if budget else base
    if found := made_before(key):
        log.info("calibration: statistics %s were made before", found[:12])
        return found
    steps = kept / f"{base}.partial"  # of any budget, if a calibration is interrupted
    for other in kept.glob("*.partial"):
        if other != steps and other.stat().st_mtime < time.time() - EXPIRY:
            shutil.rmtree(other)
    rows = frames_of(data.sentences, is_listener(resolved), resolved.source.is_large)
    needed = calibration_estimate(resolved, rows).memory_bytes
    check_memory(needed, f"the calibration of {job.source.name}", "give statistics that another machine made")
    steps.mkdir(exist_ok=True)
    with locked(steps, f"{steps}: another export makes this calibration; wait for that one"):
        if found := made_before(key):
            return found
        found = keep(calibrate(resolved, job, data, steps, (budget, target) if budget else None), key)
        shutil.rmtree(steps)
    return found


def _resolved(resolved: Resolved, chosen: Sequence[Share], calibration: str | None = None) -> Resolved:
    """With the rules of a mixture, and the hash of statistics."""
    request = resolved.request
    changes = {"rules": (*request.rules, *rules_of(chosen)), "calibration": calibration}
    return resolve(resolved.source, request.model_copy(update=changes))


def _key(resolved: Resolved, job: ExportJob, data: CalibrationData) -> str:
    """What decides the statistics without a budget; no target does."""
    recipes = {name: entry.model_dump(mode="json") for name, entry in job.recipes.items()}
    files = {name: entry.sha256 for name, entry in job.source.files.items()}
    code = [lowering_key(Path(__file__).parent), *_hashes_of_run()]
    parts = [job.family, files, job.options, job.cache_length, recipes, data.sha256, code]
    return _digest([*parts, job.tools["torch"]])


@cache
def _hashes_of_run() -> list[str]:
    """Hashes of what decides how the model speaks and what is compared, beside `lowering_key`."""
    paths = [path for pattern in CODE_OF_RUN for path in sorted(ROOT.glob(pattern))]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in (*paths, *sorted(RECORDINGS.iterdir()))]


def _digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def calibrate(
    resolved: Resolved,
    job: ExportJob,
    data: CalibrationData,
    folder: Path,
    auto: Auto | None = None,
) -> Path:
    """A file for `quantize.calibration.Calibration`. The model speaks or hears the data.

    With `auto`, it has a mixture. The steps of an interrupted calibration stay in `folder`, and are not made
    again.
    """
    log.info("calibration: the model speaks or hears %d sentences", len(data.sentences))
    with one_thread():  # sums of several threads differ in their last bits
        record = partial(_record, resolved=resolved, job=job, sentences=data.sentences)
        calls = torch.load(_step(folder / "calls", record))
        return write_statistics(resolved, calls, folder, auto, data.sha256)


def _record(path: Path, resolved: Resolved, job: ExportJob, sentences: Sequence[Sentence]) -> None:
    calls = record_run(resolved, job, sentences)
    with path.open("wb") as file:  # its error on a full disk says so
        torch.save(calls, file)


def write_statistics(
    resolved: Resolved,
    calls: Sequence[tuple[str, Call]],
    folder: Path,
    auto: Auto | None = None,
    data: str | None = None,
) -> Path:
    """The same, from recorded calls. `data` is the hash of its texts or recordings."""
    replays = _replays(resolved, calls)
    in_floats = [_rows(folder / f"{name}.floats", each) for name, each in replays.items()]
    rows_of = lambda path: next(filter(None, (each.rows(path) for each in in_floats)), None)
    chosen: Sequence[Share] = ()
    if auto:
        changes = ChannelChanges(resolved.source.root(), *choose_changes(resolved, rows_of))
        losses = lambda: expected_losses(resolved, replays, rows_of, changes)
        chosen = mixture(_losses(folder / "losses", losses), *auto)
        resolved = _resolved(resolved, chosen)
        replays = _replays(resolved, calls)
    chosen_changes = choose_changes(resolved, rows_of)
    changed = resolved.source.checkpoint.changed(ChannelChanges(resolved.source.root(), *chosen_changes))
    weights, suffix = StoredWeights(), f"weights-{_digest(resolved.request.rules)}"
    for name, each in replays.items():
        write = partial(_write_weights, replay=each, checkpoint=changed)
        found = Calibration(_step(folder / f"{name}.{suffix}", write))
        weights.tensors |= found.tensors()
        weights.schemes |= found.schemes
        weights.digests |= found.digests
        weights.rounding_errors |= found.rounding_errors
    budget = asdict(auto[0]) if auto else None
    save_calibration(folder / "statistics", weights, *chosen_changes, chosen, budget, data)
    return folder / "statistics"


def _write_weights(path: Path, replay: GraphReplay, checkpoint: Checkpoint) -> None:
    stored = replay.quantized(checkpoint).stored
    if stored.schemes:
        methods = ", ".join(f"{count} with {name}" for name, count in sorted(stored.methods.items()))
        log.info("calibration: %s: %d linears quantised, %s", replay.name, len(stored.schemes), methods)
    save_calibration(path, stored)


def _replays(resolved: Resolved, calls: Sequence[tuple[str, Call]]) -> dict[str, GraphReplay]:
    return {name: GraphReplay(resolved, name, calls) for name in resolved.graphs}


def _losses(path: Path, losses: Callable[[], Iterable[Choice]]) -> list[Choice]:
    def write(written: Path) -> None:
        written.write_text(json.dumps([asdict(each) for each in losses()]))

    return [Choice(**each) for each in json.loads(_step(path, write).read_text())]


def _rows(path: Path, replay: GraphReplay) -> Calibration:
    """The inputs of the linears of a graph. Warns of linears that meet too few."""

    def write(written: Path) -> None:
        rows = replay.in_floats()
        if few := [linear for linear, found in rows.items() if len(found) < LEAST_ROWS]:
            log.warning(
                "calibration: %d linears, such as %s, meet fewer than %d rows, so weights alone decide; give "
                "more sentences",
                len(few),
                few[0],
                LEAST_ROWS,
            )
        save_rows(written, rows)

    return Calibration(_step(path, write))


def _step(path: Path, write: Callable[[Path], None]) -> Path:
    """The file of a step, which is written unless it is there. Raises ExportError."""
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        try:
            write(unfinished)
        except SafetensorError as error:
            unfinished.unlink(missing_ok=True)
            raise ExportError(f"{path}: cannot be written; is the disk full? ({error})") from None
        unfinished.replace(path)
    return path
