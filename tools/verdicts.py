"""Counts verdicts of verification at the published width: on right graphs, and with planted faults.

    verdicts.py --folder FOLDER --targets onnx,executorch --recipes w8,w4,w4g128,8da4w --seeds 20 -o OUT

Writes a checkpoint of Voxtral-TTS with the published widths and one layer in the backbone (three in the
acoustic head). Each target and recipe gets a bundle, and a JSON file in the folder OUT. A verdict is that of
`check_components` for one output or state of one component, in one call with one seed of inputs. A fault
changes the eager side: the distance of a faulty artifact from right eager is that of a right artifact from
faulty eager. Its size grows until it is found with every seed. `--faults none` plants none.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import voxport.model.voxtral_tts.modules as tts
from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.export.model import Export, Model
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.targets import target_of_job
from voxport.export.targets.base import Target
from voxport.export.verify.comparison import Comparison
from voxport.export.verify.component_checks import check_components
from voxport.export.verify.context import Context, open_context
from voxport.export.verify.modes import Extent, VerifyOptions, modes
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.model.voxtral_tts import sizes
from voxport.quantize.modules import QuantizedLinear
from voxport.runtime.engines import ENGINES
from voxport.runtime.machine import describe_machine

COMPONENTS = {"decode_step": "prefill", "acoustic_step": None}  # and the component that makes its states
FAULT_SEEDS = 3
ROPE_THETA = 1e6  # of the published model
log = logging.getLogger(__name__)


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute, and restores it on exit. The owner and the value are of any type."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def scale_of_a_group(model: Model, share: float) -> Iterator[None]:
    """One scale of the first linear of each graph is larger by a share."""
    linears = [
        next(part for part in model.graph(name).module.modules() if isinstance(part, QuantizedLinear))
        for name in ("backbone", "acoustic_step")
    ]
    for linear in linears:
        linear.scale[0, 0] *= 1 + share
    try:
        yield
    finally:
        for linear in linears:
            linear.scale[0, 0] /= 1 + share


class Rotated(nn.Module):
    """A linear whose first heads of queries are rotated by more positions."""

    def __init__(self, inner: nn.Module, head_dim: int, heads: int, positions: float):
        super().__init__()
        self.inner, self.head_dim, self.heads = inner, head_dim, heads
        angle = positions * ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x).clone()
        heads = y[..., : self.heads * self.head_dim].unflatten(-1, (self.heads, self.head_dim))  # a view
        even, odd = heads[..., ::2].clone(), heads[..., 1::2].clone()
        heads[..., ::2] = even * self.cos - odd * self.sin
        heads[..., 1::2] = odd * self.cos + even * self.sin
        return y


@contextmanager
def rotation(model: Model, heads: int, positions: float) -> Iterator[None]:
    """The rotation of the queries of some heads is off by some positions."""
    attention: Any = model.graph("backbone").module.get_submodule("layers.0.attention")
    with changed(attention, "wqkv", Rotated(attention.wqkv, attention.head_dim, heads, positions)):
        yield


def rotation_of_a_head(model: Model, positions: float) -> AbstractContextManager[None]:
    return rotation(model, 1, positions)


def rotation_of_heads(model: Model, heads: float) -> AbstractContextManager[None]:
    return rotation(model, int(heads), 1)


@contextmanager
def epsilon_of_a_norm(model: Model, factor: float) -> Iterator[None]:
    """Epsilon of the last norm of each graph is larger by a factor."""
    norms: list[Any] = [model.graph(name).module.norm for name in ("backbone", "acoustic_step")]
    with changed(norms[0], "eps", factor * norms[0].eps), changed(norms[1], "eps", factor * norms[1].eps):
        yield


@contextmanager
def guidance(model: Model, added: float) -> Iterator[None]:
    with changed(tts, "CFG_ALPHA", tts.CFG_ALPHA + added):
        yield


@contextmanager
def gain_of_half(model: Model, share: float) -> Iterator[None]:
    """Half of the channels of every output are larger by a share."""

    def amplify(module: nn.Module, inputs: object, result: tuple[torch.Tensor, ...]) -> Any:  # as it was
        outputs, rest = result[: counts[module]], result[counts[module] :]
        halves = (output[..., : output.shape[-1] // 2] for output in outputs)
        others = (output[..., output.shape[-1] // 2 :] for output in outputs)
        gained = (
            torch.cat((half * (1 + share), other), -1) for half, other in zip(halves, others, strict=True)
        )
        return (*gained, *rest)

    parts = [part for part in model.components if part.name in COMPONENTS]
    counts = {model.module(part.name): len(part.signature.outputs) for part in parts}
    hooks = [module.register_forward_hook(amplify) for module in counts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def time_of_a_neighbour(model: Model, distance: float) -> Iterator[None]:
    """Every Euler step has the time of an earlier step."""
    module: Any = model.graph("acoustic_step").module
    names = ("time_tokens", "time_q", "time_k", "time_v")
    before = {name: getattr(module, name) for name in names}
    for name, value in before.items():
        setattr(module, name, value.roll(int(distance), 0))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@dataclass(frozen=True)
class Fault:
    """`plant(model, size)` changes the modules. Sizes are tried from the smallest one, until one is found.

    `first_seed(size)` is that of the first inputs.
    """

    plant: Callable[[Model, float], AbstractContextManager[None]]
    sizes: tuple[float, ...]
    components: tuple[str, ...] = tuple(COMPONENTS)
    first_seed: Callable[[float], int] = lambda size: 0


FAULTS = {
    "one scale of a group larger by": Fault(scale_of_a_group, (0.02, 0.1, 0.5, 1, 2, 4, 8, 16)),
    "rotation of one head off by positions": Fault(
        rotation_of_a_head, (1, 2, 4, 8, 16, 32, 64), ("decode_step",)
    ),
    "rotation off by one position, of heads": Fault(
        rotation_of_heads, (1, 2, 4, 8, 12, 16, 24, 32), ("decode_step",)
    ),
    "epsilon of one norm times": Fault(epsilon_of_a_norm, (10, 100, 1e3, 3e3, 1e4, 3e4)),
    "guidance 1.2 plus": Fault(
        guidance, (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16), ("acoustic_step",)
    ),
    "half of the channels larger by": Fault(gain_of_half, (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2)),
    # The seed of the inputs is the number of the Euler step. The first steps get a time of the last ones,
    # which is no neighbour.
    "time of an earlier Euler step, by": Fault(time_of_a_neighbour, (1, 2, 3), ("acoustic_step",), int),
}


def verdicts(context: Context, component: str, seed: int, mode: str) -> list[dict[str, Any]]:
    """The rows of one component and one call, with the mode and the seed of its inputs."""
    extent = replace(Extent(), seeds=(seed,), sizes=(1,))
    others = [name for name in (COMPONENTS[component], component) if name]
    components = {name: replace(context.components[name], cases=1) for name in others}
    # with `perturbed`, or with more cases, `Context.call_seeds` would give other seeds
    engines = replace(context.engines, perturbed=None)
    narrowed = replace(context, components=components, extent=extent, engines=engines)
    return [
        row.row() | {"mode": mode, "seed": seed}
        for row in check_components(narrowed)
        if isinstance(row, Comparison) and row.component == component
    ]


def find_size(context: Context, model: Model, name: str, component: str) -> dict[str, Any]:
    """The least size of a fault that is found with every seed, and the sizes tried.

    At each size, the first seeds up to the one that does not find it; the factor by which an error could be
    larger and still pass, which is below 1 where the fault is found.
    """
    fault, tried = FAULTS[name], list[dict[str, Any]]()
    narrowed = replace(context, engines=replace(context.engines, full=None))
    for size in fault.sizes:
        margins: list[float] = []
        with fault.plant(model, size):
            first = fault.first_seed(size)
            for seed in range(first, first + FAULT_SEEDS):
                rows = verdicts(narrowed, component, seed, "")
                margins.append(min(row["margin"] for row in rows))
                if all(row["passed"] for row in rows):
                    break
            else:
                return {"least_size_found": size, "tried": [*tried, {"size": size, "margins": margins}]}
        tried.append({"size": size, "margins": margins})
    return {"least_size_found": None, "tried": tried}


def measure(
    bundle: Bundle, resolved: Resolved, target: Target, seeds: int, faults: dict[str, Fault]
) -> dict[str, Any]:
    """Verdicts without a fault for all seeds, and the size at which each fault is found."""
    made = Export(resolved, target, bundle.job)
    for graph in made.model.graphs():
        log.info("%s: %s", bundle.folder.name, graph.name)
    result: dict[str, Any] = {"right": [], "faults": {name: {} for name in faults}, "seconds": []}
    for mode in modes(resolved, target, VerifyOptions()):
        context, suffix = open_context(bundle, made, mode), mode.suffix
        for component in COMPONENTS:
            for seed in range(seeds):
                started = time.perf_counter()
                result["right"] += verdicts(context, component, seed, suffix)
                result["seconds"].append(time.perf_counter() - started)
            for name, fault in faults.items():
                places = result["faults"][name]
                if component not in fault.components or _found_at_once(places, component, fault):
                    continue
                found = find_size(context, made.model, name, component)
                places[f"{component}{suffix}"] = found
                log.info("%s, %s%s: %s", name, component, suffix, json.dumps(found))
    return result


def _found_at_once(places: dict[str, Any], component: str, fault: Fault) -> bool:
    """Whether an earlier mode found the least size of a fault in the component."""
    return any(
        place.startswith(component) and found["least_size_found"] == fault.sizes[0]
        for place, found in places.items()
    )


def summary(bundle: Bundle, result: dict[str, Any]) -> dict[str, Any]:
    """Counts, the row with the smallest margin, rows that failed, and the size at which a fault is found.

    Two bundles with equal files are one program, so their verdicts are the same.
    """
    right, package = result["right"], ENGINES[bundle.job.target].packages[0]
    names = [file for file in bundle.manifest.files if file.startswith(("backbone", "acoustic_step"))]
    return {
        "machine": describe_machine(None, package) | {"torch": torch.__version__},
        "files": {name: bundle.manifest.files[name].sha256[:16] for name in names},
        "seeds": len({row["seed"] for row in right}),
        "fault_seeds": FAULT_SEEDS if result["faults"] else 0,
        "calls": len(result["seconds"]),
        "verdicts": len(right),
        "seconds_per_call": round(statistics.median(result["seconds"]), 2),
        "failed": [row for row in right if not row["passed"]],
        "nearest": min(right, key=lambda row: float(row["margin"])),
        "faults": result["faults"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of checkpoint and bundles")
    parser.add_argument("--targets", default="onnx,executorch")
    parser.add_argument("--recipes", default="w8,w4,w4g128,8da4w")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of inputs (default: 20)")
    parser.add_argument(
        "--faults", default="", help="only those whose name contains this; 'none' plants none"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the JSON files")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    backbone = {"n_layers": 1, "vocab_size": 1536}
    sizes.SIZES["wide"] = replace(sizes.SIZES["tiny"], backbone=backbone, acoustic={})
    checkpoint = arguments.folder / "checkpoint"
    if not checkpoint.exists():
        write_checkpoint(checkpoint, "wide")
    for name in arguments.targets.split(","):
        for recipe in arguments.recipes.split(","):
            folder = arguments.folder / f"{name}-{recipe}"
            options = ["--checkpoint", str(checkpoint), "--target", name, "--quant", recipe]
            options += ["--quant-for", "codec=none"]  # the tiny codec has no rows of 128 weights
            if export([*options, "--cache-length", "256", "--no-verify", "--force", "--out", str(folder)]):
                raise SystemExit(f"{folder}: export failed")
            bundle = Bundle(folder)
            resolved = resolve(Source(checkpoint), bundle.job.request)
            faults = {name: fault for name, fault in FAULTS.items() if arguments.faults in name}
            rows = measure(bundle, resolved, target_of_job(bundle.job), arguments.seeds, faults)
            result = summary(bundle, rows)
            log.info("%s: %s", folder.name, json.dumps(result["nearest"]))
            (arguments.out / f"{folder.name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
