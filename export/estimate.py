"""Sizes of weights, and estimates of an export from shapes alone: memory, time and disk.

The constants are measured with exports of the published size and of the smallest one, on two cores with
AVX-512. `speed` scales the times to the current machine.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import nn

from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.export.verify.modes import DEFAULTS, modes
from voxport.model.checkpoint import is_below
from voxport.quantize.schemes import Storage
from voxport.quantize.search import search_scales

TOOLS_BYTES = 0.5e9  # resident after torch and the packages of a target are imported
LOADING_BYTES = 6  # bytes for each weight of the largest tensor while it is read: as stored, and as a float
CACHE_COPIES = 3  # sets of caches that verification holds at once: two streams and a snapshot
HASHED_PER_SECOND = 0.3e9  # bytes of the source that are hashed per second
QUANTISED, READ = 60e6, 400e6  # weights that are quantised, and weights that are only read, per second
# Calibration: seconds of a frame beside its weights, weights per second of its frames in eager PyTorch and of
# the choice of integers, and bytes of the largest products of inputs.
FRAME, EAGER, CALIBRATED, SOLVING_BYTES = 0.08, 2e9, 4e6, 0.4e9
PROBE_WEIGHTS = 2**20  # weights that `speed` quantises at a time
REFERENCE_SPEED = 100e6  # weights that the reference machine quantises per second
MIN_SPEED = 0.2  # least result of `speed`


@dataclass
class GraphWeights:
    """Weights of one graph.

    Without folded constants: their `count`, and bytes. `stored` is the size in the recipe's types. `read` is
    what one call reads from memory, some of it several times; the few rows of a table count as none. `loaded`
    and `packed` are the size in memory before and after packing.

    With folded constants: `largest` is the number of values of the largest tensor, and `products` the number
    of matrices and kernels of convolutions.
    """

    count: int = 0
    stored: float = 0.0
    read: float = 0.0
    loaded: float = 0.0
    packed: float = 0.0
    largest: int = 0
    products: int = 0


def graph_weights(resolved: Resolved, float_bytes: int) -> dict[str, GraphWeights]:
    """Sizes of the weights of each graph; `float_bytes` is the size of an unquantised value."""
    return {graph: _graph_weights(resolved, graph, float_bytes) for graph in resolved.recipes}


def _graph_weights(resolved: Resolved, graph: str, float_bytes: int) -> GraphWeights:
    source, recipe, found = resolved.source, resolved.recipes[graph], GraphWeights()
    spec = resolved.graphs[graph]
    reads = spec.reads(source.config)
    # a tied weight is in both graphs
    for name, parameter in source.root().named_parameters(remove_duplicate=False):
        path, count = name.removesuffix(".weight"), parameter.numel()
        if not is_below(name, spec.weights):
            continue
        found.largest = max(found.largest, count)
        found.products += parameter.dim() > 1
        if source.family.is_folded(path):
            continue
        module = source.quantizable.get(path)
        is_table = isinstance(module, nn.Embedding)
        scheme = recipe.scheme_for(path, is_table) if module else None
        floats = Storage(float(float_bytes * count), float(4 * count), float(4 * count))
        storage = scheme.storage(parameter.shape) if scheme else floats
        found.count += count
        found.stored += storage.artifact
        if not is_table:
            found.read += storage.artifact * math.prod(
                n for part, n in reads.items() if is_below(name, (part,))
            )
        found.loaded += storage.loaded
        found.packed += storage.packed
    return found


@dataclass(frozen=True)
class GraphEstimate:
    """Number of weights of one graph, their bytes in the artifact, and the name of the recipe."""

    weights: int
    bytes: int
    recipe: str


@dataclass(frozen=True)
class Estimate:
    """What an export needs: disk, peak memory, and seconds on the reference machine."""

    graphs: dict[str, GraphEstimate]
    disk_bytes: int
    memory_bytes: int
    reference_seconds: float


def estimate(resolved: Resolved, target: Target, verifies: bool) -> Estimate:
    """The estimate of an export to `target`. `verifies` includes verification.

    Verification needs the weights of all graphs. The peak of memory is therefore where the largest tensor of
    a graph is read, where the artifact of a graph is made, or where all artifacts run beside their
    references.
    """
    source, costs, weights = resolved.source, target.costs, graph_weights(resolved, target.float_bytes)
    loaded, peak, seconds = 0.0, 0.0, source.checkpoint.size / HASHED_PER_SECOND
    for graph, found in weights.items():
        loaded = loaded if verifies else 0.0
        peak = max(peak, loaded + LOADING_BYTES * found.largest)
        peak = max(peak, loaded + found.loaded + costs.lowering * found.stored)
        loaded += found.packed
        rate = READ if resolved.recipes[graph].linears is None else QUANTISED
        seconds += costs.product * found.products + found.count / rate
    rows = {
        graph: GraphEstimate(found.count, int(found.stored), resolved.recipes[graph].name)
        for graph, found in weights.items()
    }
    artifact = sum(int(found.stored) for found in weights.values())
    count = sum(found.count for found in weights.values())
    if verifies:
        caches = max(  # bytes, of the component that has the most
            sum(4 * torch.Size(state.shape).numel() for state in component.signature.states)
            for component in resolved.components()
        )
        reference = 0 if source.is_large else 4 * count  # a small model, in full precision
        peak = max(peak, loaded + costs.running * artifact + CACHE_COPIES * caches + reference)
        sample = costs.sample * count / 1e9 if source.is_large else 0
        seconds += len(modes(resolved, target, DEFAULTS)) * (costs.verification + sample)
    return Estimate(
        graphs=rows,
        disk_bytes=int(artifact + sum(voice.numel() * 4 for voice in source.voices.values())),
        memory_bytes=int(TOOLS_BYTES + peak),
        reference_seconds=seconds,
    )


@dataclass(frozen=True)
class CalibrationEstimate:
    """What a calibration needs before the export: the most `rows` (frames that the model speaks or hears),
    peak memory, and seconds on the reference machine.
    """

    rows: int
    memory_bytes: int
    reference_seconds: float


def calibration_estimate(resolved: Resolved, rows: int) -> CalibrationEstimate:
    """The estimate for so many rows."""
    weights = graph_weights(resolved, 4).values()
    loaded, count = sum(found.loaded for found in weights), sum(found.count for found in weights)
    seconds = rows * (FRAME + count / EAGER) + count / CALIBRATED
    return CalibrationEstimate(rows, int(TOOLS_BYTES + SOLVING_BYTES + loaded), seconds)


def speed(seconds: float = 1.0) -> float:
    """Speed of this machine relative to the reference machine, at least `MIN_SPEED`.

    The best of the small searches for scales that fit into `seconds`. Other programs on the machine may delay
    one search a hundred times.
    """
    weight = torch.randn(PROBE_WEIGHTS // 1024, 1024, generator=torch.Generator().manual_seed(0))
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        started = time.perf_counter()
        search_scales(weight, 32, (-8, 7))
        best = min(best, time.perf_counter() - started)
    return max(MIN_SPEED, PROBE_WEIGHTS / REFERENCE_SPEED / best)
