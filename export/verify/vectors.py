"""Writes `vectors.json` of a bundle, and checks that its artifacts still compute it."""

from collections.abc import Iterable

import numpy as np

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import VECTORS, Bundle
from voxport.export.evaluation.sentences import HELD_OUT, read_sentences
from voxport.export.model import Model
from voxport.export.targets.base import Target
from voxport.export.verify.comparison import FLOAT16_BAR, FLOAT_BAR, Assertion
from voxport.export.verify.eager import EagerEngine
from voxport.runtime.audio.files import MAX_PCM16
from voxport.runtime.engines.base import DEFAULT, Arrays
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.vectors import Vectors, choices_of, compare, read_vectors, values_of

SEED, FRAMES, SEEDS = "seed", "frames", 4  # keys of a request, and how many seeds are tried
SECONDS = 2.0  # length of the recording
# Another engine, or another processor, rounds independently: its distance from eager is about that of the
# artifact. The largest of n distances of one spread varies by less than a factor of 2 between such samples of
# 256 values or more; another factor of 2 is for another spread.
DISTANCE = 4.0


def write_vectors(bundle: Bundle, model: Model, target: Target) -> None:
    """From eager, with the arithmetic of the target. A code that differs in the artifact is near a tie."""
    family, constants = open_family(bundle.job.family), read_constants(bundle.job)
    workload = family.vectors
    if workload is None:
        return
    eager = EagerEngine(model.components, model.module, target.layout, target.linear_kernel)
    artifact = target.open_artifacts(bundle, DEFAULT)
    runs = list[tuple[int, Json, Arrays, Arrays]]()  # codes that differ and that lack, and the run
    for request in _requests(workload.request(bundle, _recording)):
        expected, differ = workload.run(eager, bundle, constants, request), 0
        chosen = expected.get(workload.chosen, np.zeros(0))  # an aligner feeds nothing back
        if len(chosen):
            request[workload.chosen] = chosen.tolist()
        found = workload.run(artifact, bundle, constants, request)
        if len(chosen):
            differ = int((found[workload.chosen] != chosen).sum())
        runs.append((differ + request.get(FRAMES, 0) - len(chosen), request, expected, found))
        if differ == 0 and len(chosen) >= request.get(FRAMES, 0):
            break
    _, request, expected, found = min(runs, key=lambda run: run[0])
    is_half = bundle.job.compute_precision == "float16"
    values = [
        choices_of(name, each, found[name], name == workload.chosen)
        if each.dtype.kind in "iu"
        else values_of(name, each, found[name], _least(each, found[name], is_half), DISTANCE)
        for name, each in expected.items()
    ]
    content = Vectors(request=request, values=tuple(values)).model_dump_json()
    (bundle.folder / VECTORS).write_text(content + "\n", encoding="utf-8")


def _least(expected: np.ndarray, found: np.ndarray, is_half: bool) -> float:
    """The artifact is a copy with float32 sums here, and a device may sum in half precision. What no graph
    computes, such as noise, is equal here.
    """
    return FLOAT16_BAR if is_half and not np.array_equal(expected, found) else FLOAT_BAR


def _requests(request: Json) -> list[Json]:
    """The request with several seeds, if it has one: some give choices that are far from a tie."""
    return [request | {SEED: seed} for seed in range(SEEDS)] if SEED in request else [request]


def check_vectors(bundle: Bundle, target: Target) -> Iterable[Assertion]:
    """Whether the artifacts compute the values of `vectors.json`."""
    workload = open_family(bundle.job.family).vectors
    if workload is None:
        return
    if not (bundle.folder / VECTORS).is_file():
        if bundle.is_verified:  # else an export is about to write it
            yield Assertion("vectors", True, f"{VECTORS} is missing", left_out=True)
        return
    vectors = read_vectors(bundle)
    engine, constants = target.open_artifacts(bundle, DEFAULT), read_constants(bundle.job)
    found = workload.computed(engine, bundle, constants, vectors.request)
    wrong = [f"{each.name}: {each.text}" for each in compare(vectors, found) if each.text]
    yield Assertion("vectors", not wrong, "; ".join(wrong) or f"{len(vectors.values)} arrays are equal")


def _recording(rate: int) -> np.ndarray:
    samples = read_sentences(HELD_OUT, 1)[0].samples(rate)[: round(SECONDS * rate)]
    return np.round(samples * MAX_PCM16).clip(-MAX_PCM16, MAX_PCM16).astype(np.int16)
