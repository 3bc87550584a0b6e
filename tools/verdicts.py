"""Counts verdicts of verification at the published width: on right graphs, and with planted faults.

    verdicts.py --folder FOLDER --targets onnx,executorch --recipes w8,w4,w4g128,8da4w --seeds 20 -o OUT.json

Writes a checkpoint of Voxtral-TTS with the published widths and one layer in the backbone (three in the
acoustic head), and one bundle for each target and recipe. A verdict is that of `check_components` for one
component, with one seed of inputs. A fault changes the eager side: the distance of a faulty artifact from
right eager is that of a right artifact from faulty eager.
"""

import argparse
import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import model.voxtral_tts.modules as tts
from bundle.manifest import Bundle
from export.__main__ import main as export
from export.model import Export, Model
from export.resolve import Resolved, Source, resolve
from export.targets import target_of_job
from export.targets.base import Target
from export.verify.comparison import Comparison
from export.verify.component_checks import check_components
from export.verify.context import Context, Extent
from export.verify.modes import VerifyOptions, modes
from export.verify.run import open_context
from model.synthetic.checkpoint import write_checkpoint
from model.voxtral_tts import sizes
from quantize.modules import QuantizedLinear

COMPONENTS = {"decode_step": "prefill", "acoustic_step": None}  # and the component that makes its states
Fault = Callable[[Model], Iterator[None]]
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
def scale_of_a_group(model: Model) -> Iterator[None]:
    """One scale of the first linear of each graph is 2 % larger."""
    linears = [
        next(part for part in model.graph(name).module.modules() if isinstance(part, QuantizedLinear))
        for name in ("backbone", "acoustic_step")
    ]
    for linear in linears:
        linear.scale[0, 0] *= 1.02
    try:
        yield
    finally:
        for linear in linears:
            linear.scale[0, 0] /= 1.02


class Rotated(nn.Module):
    """A linear whose first head of queries is rotated by one more position."""

    def __init__(self, inner: nn.Module, head_dim: int, theta: float):
        super().__init__()
        self.inner, self.head_dim = inner, head_dim
        angle = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x).clone()
        even, odd = y[..., : self.head_dim : 2].clone(), y[..., 1 : self.head_dim : 2].clone()
        y[..., : self.head_dim : 2] = even * self.cos - odd * self.sin
        y[..., 1 : self.head_dim : 2] = odd * self.cos + even * self.sin
        return y


@contextmanager
def rotation_of_a_head(model: Model) -> Iterator[None]:
    """The rotation of one head is off by one position."""
    attention: Any = model.graph("backbone").module.get_submodule("layers.0.attention")
    with changed(attention, "wqkv", Rotated(attention.wqkv, attention.head_dim, 1e6)):
        yield


@contextmanager
def epsilon_of_a_norm(model: Model) -> Iterator[None]:
    """Epsilon of the last norm of each graph is ten times as large."""
    norms: list[Any] = [model.graph(name).module.norm for name in ("backbone", "acoustic_step")]
    with changed(norms[0], "eps", 10 * norms[0].eps), changed(norms[1], "eps", 10 * norms[1].eps):
        yield


@contextmanager
def guidance(model: Model) -> Iterator[None]:
    """1.21 instead of 1.2."""
    with changed(tts, "CFG_ALPHA", tts.CFG_ALPHA + 0.01):
        yield


@contextmanager
def time_of_a_neighbour(model: Model) -> Iterator[None]:
    """Every Euler step has the time of the step before it."""
    module: Any = model.graph("acoustic_step").module
    names = ("time_tokens", "time_q", "time_k", "time_v")
    before = {name: getattr(module, name) for name in names}
    for name, value in before.items():
        setattr(module, name, value.roll(1, 0))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def no_fault(model: Model) -> Iterator[None]:
    yield


FAULTS: dict[str, tuple[Callable[[Model], Any], tuple[str, ...]]] = {  # Any: a context manager
    "one scale of a group, 2 % larger": (scale_of_a_group, ("decode_step", "acoustic_step")),
    "rotation of one head off by one position": (rotation_of_a_head, ("decode_step",)),
    "epsilon of one norm times 10": (epsilon_of_a_norm, ("decode_step", "acoustic_step")),
    "guidance 1.21 instead of 1.2": (guidance, ("acoustic_step",)),
    "Euler steps with the time of their neighbours": (time_of_a_neighbour, ("acoustic_step",)),
}


def verdicts(context: Context, component: str, seed: int, mode: str) -> list[dict[str, Any]]:
    """The rows of one component and one seed of inputs, with the mode and the seed."""
    extent = replace(Extent(), seeds=(seed,), sizes=(1,))
    others = [name for name in (COMPONENTS[component], component) if name]
    components = {name: context.components[name] for name in others}
    narrowed = replace(context, components=components, extent=extent)
    return [
        row.row() | {"mode": mode, "seed": seed}
        for row in check_components(narrowed)
        if isinstance(row, Comparison) and row.component == component
    ]


def measure(bundle: Bundle, resolved: Resolved, target: Target, seeds: int) -> dict[str, Any]:
    """Verdicts without a fault for all seeds, and with each fault for three."""
    made = Export(resolved, target, bundle.job)
    for graph in made.model.graphs():
        log.info("%s: %s", bundle.folder.name, graph.name)
    result: dict[str, Any] = {"right": [], "faults": {name: [] for name in FAULTS}}
    for mode in modes(resolved, target, VerifyOptions()):
        context, suffix = open_context(bundle, made, mode), mode.suffix
        for component in COMPONENTS:
            for seed in range(seeds):
                result["right"] += verdicts(context, component, seed, suffix)
            for name, (fault, affected) in FAULTS.items():
                if component in affected:
                    with fault(made.model):
                        for seed in range(3):
                            result["faults"][name] += verdicts(context, component, seed, suffix)
    return result


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Counts, the row with the smallest margin, rows that failed, and where each fault was found."""
    right = result["right"]
    return {
        "verdicts": len(right),
        "failed": [row for row in right if not row["passed"]],
        "nearest": min(right, key=lambda row: math.inf if row["margin"] is None else row["margin"]),
        "faults": {
            name: {
                "found in": sorted({f"{row['component']}{row['mode']}" for row in rows if not row["passed"]}),
                "largest error": max(row["lowering_error_worst"] for row in rows),
            }
            for name, rows in result["faults"].items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of checkpoint and bundles")
    parser.add_argument("--targets", default="onnx,executorch")
    parser.add_argument("--recipes", default="w8,w4,w4g128,8da4w")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of inputs (default: 20)")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    backbone = {"n_layers": 1, "vocab_size": 1536}
    sizes.SIZES["wide"] = replace(sizes.SIZES["tiny"], backbone=backbone, acoustic={})
    checkpoint, results = arguments.folder / "checkpoint", {}
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
            rows = measure(bundle, resolved, target_of_job(bundle.job), arguments.seeds)
            results[folder.name] = summary(rows)
            log.info("%s: %s", folder.name, json.dumps(results[folder.name], indent=1))
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
