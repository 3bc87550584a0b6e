"""Convert the weights of a checkpoint: to and from mlx-audio and transformers, or to another precision."""

from __future__ import annotations

import argparse
import json
import re
from importlib.util import find_spec
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.names import HUB_FORM
from voxport.cli.arguments import add_json, complete_values, folder, integer
from voxport.cli.checkpoint import add_weights_argument
from voxport.model.mlx.layout import BITS, FLOATS, GROUPS, PACKINGS, Packing
from voxport.quantize.recipe import RECIPES, Recipe, find_recipe
from voxport.quantize.schemes import IntegerScheme


def _reason_not_supported(recipe: Recipe) -> str | None:
    """Why MLX cannot follow a recipe, and what to do; None if it can."""
    linears = recipe.linears
    if linears and not isinstance(linears, IntegerScheme):
        return "MLX holds integers in groups; use w4, w4g128, w8 or w8g128"
    if isinstance(linears, IntegerScheme) and linears.activations == "int8":
        return "MLX does not round activations; use w4, which has the same weights"
    return None


def _packing(name: str) -> Packing | None:
    """The packing that MLX computes for a name such as `mxfp4`, `affine4` or `affine4g32`; None for other
    names. Raises UsageError.
    """
    found = re.fullmatch(r"affine(\d+)(?:g(\d+))?", name.lower())
    packing = Packing(int(found[1]), int(found[2] or 64)) if found else PACKINGS.get(name.lower())
    if not packing:
        return None
    if found and (packing.bits not in BITS or packing.group not in GROUPS):
        known = f"{', '.join(map(str, BITS))} bits in groups of {', '.join(map(str, GROUPS))}"
        raise UsageError(f"--quant {name}: MLX has {known}", field="quant")
    if not find_spec("mlx"):
        reason = "MLX computes it, and the package mlx is not installed; run pip install mlx"
        raise UsageError(f"--quant {name}: {reason} (on Linux 'mlx[cpu]')", field="quant")
    return packing


PRECISIONS = ("bf16", "f16", "f32")
DESTINATIONS = ("mlx", "published", "transformers")
LAYOUTS = ("mlx-audio", "mlx")
MLX_QUANTS = (*(f"affine{bits}" for bits in BITS), *(packing.mode for packing in FLOATS))
DEFAULT_SIZE = "tiny"  # size of a synthetic checkpoint
QUANTS = tuple(name for name, recipe in RECIPES.items() if not _reason_not_supported(recipe))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=folder,
        metavar="FOLDER",
        help=f"a checkpoint, or a folder of mlx-audio: a folder or a name in the hub, {HUB_FORM}",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="new or empty folder")
    add_weights_argument(parser)
    parser.add_argument("--to", required=True, choices=DESTINATIONS, help="files, names and layouts to write")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="with --to mlx: what mlx-audio reads, or all convolutions in the order of MLX's own modules and "
        "weight norms folded (default: the layout of FOLDER, or mlx-audio for a published one)",
    )
    parser.add_argument("--dtype", choices=PRECISIONS, help="precision of floats (default: as each tensor)")
    quant = parser.add_argument(
        "--quant",
        default="none",
        metavar="RECIPE",
        help=f"integers, with --to mlx: {', '.join(QUANTS)}; or what MLX itself computes, if the "
        f"package mlx is installed: {', '.join(MLX_QUANTS)} (default: none)",
    )
    complete_values(quant, (*QUANTS, *MLX_QUANTS))
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    packing = _packing(arguments.quant)
    recipe = find_recipe(("w8" if packing.bits == 8 else "w4") if packing else arguments.quant)
    if arguments.to != "mlx" and recipe.name != "none":
        text = f"--quant {arguments.quant}: {arguments.to} checkpoints have no integers; leave it out"
        raise UsageError(text, field="quant")
    if arguments.to != "mlx" and arguments.layout:
        raise UsageError("--layout: is for --to mlx; leave it out", field="layout")
    if reason := _reason_not_supported(recipe):
        raise UsageError(f"--quant {recipe.name}: {reason}", field="quant")
    from voxport.export.conversion.convert import convert
    from voxport.export.conversion.outputs import DTYPES, Conversion

    dtype = DTYPES[arguments.dtype] if arguments.dtype else None
    conversion = Conversion(arguments.to, dtype, recipe, arguments.layout, packing)
    found = convert(arguments.folder, arguments.out, conversion, arguments.weights, arguments.adapter)
    if arguments.json:
        result = {
            "out": str(found.out),
            "tensors": found.tensors,
            "bytes": found.size,
            "floats": found.floats,
            "dropped": list(found.dropped),
        }
        print(json.dumps(result, indent=1))
    else:
        print(found.out)
    return 0


class Synth:
    """Write a checkpoint of random weights in the published format."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        from voxport.model.families import DEFAULT, FAMILIES, public_name

        parser.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
        names, default = " or ".join(map(public_name, FAMILIES)), public_name(DEFAULT)
        help_text = f"{names} (default: {default})"
        model = parser.add_argument("--model", default=default, metavar="NAME", help=help_text)
        complete_values(model, map(public_name, FAMILIES))
        sizes = f"one of the family's sizes, which `voxport list` shows (default: {DEFAULT_SIZE})"
        parser.add_argument("--size", default=DEFAULT_SIZE, help=sizes)
        seed = "seed of the weights; the same seed gives the same bytes (default: 0)"
        parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help=seed)
        outliers = "plant outlier channels as in trained models; full precision changes by rounding only"
        parser.add_argument("--outliers", action="store_true", help=outliers)
        add_json(parser)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        from voxport.model.families import find_family

        key = find_family(arguments.model)  # before torch is imported
        from voxport.model.synthetic.checkpoint import write_checkpoint
        from voxport.model.synthetic.outliers import Outliers

        plant = Outliers if arguments.outliers else None
        write_checkpoint(arguments.out, arguments.size, arguments.seed, key, plant)
        result = {
            "out": str(arguments.out),
            "family": key,
            "size": arguments.size,
            "seed": arguments.seed,
            "outliers": arguments.outliers,
            "bytes": sum(path.stat().st_size for path in arguments.out.rglob("*") if path.is_file()),
        }
        print(json.dumps(result) if arguments.json else arguments.out)
        return 0
