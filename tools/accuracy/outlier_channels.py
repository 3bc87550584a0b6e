"""Codes of Qwen3-TTS with every recipe, where some channels of the model have far larger weights than others.

    outlier_channels.py --factors 1,64 --recipes w8,w8g128,w4,w4/w4,w4/w8g128 --folder FOLDER -o OUT.json

Two input channels of each block of talker and code predictor get weights that are FACTOR times as large, and
the norm before them divides by FACTOR. In full precision this is the same model, to the bit: factors are
powers of two. Trained models have such channels; random weights have none. Both channels are in one group of
128 weights, and in two groups of 32.

The checkpoint is the embedded model with inner widths of 512. Eager PyTorch runs it with 8-bit activations in
the blocks that ONNX Runtime has, with the history of full precision. `w4/w8g128` is `w4` with a code
predictor of `w8g128`. A row that OUT.json has already is not made again.
"""

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.comparison import measure
from voxport.export.verify.eager import EagerEngine
from voxport.model.qwen3_tts import sizes
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.quantize.modules import float_activations, int8_per_block
from voxport.runtime.families import open_family
from voxport.runtime.families.base import ForcedRun
from voxport.runtime.machine import describe_machine

FAMILY, SIZE, WIDTH = "qwen3_tts", "wide", 512
PREDICTOR, FULL = "code_predictor", "none"
OUTLIERS = (3, 70)
PROMPT_ROWS = 32  # above those of the prompt of verification
READERS = {  # norm -> linears that read its output
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
log = logging.getLogger(__name__)


def write_wide(folder: Path, factor: int) -> None:
    """Writes the checkpoint with channels that are `factor` times as large."""
    tiny, width = sizes.SIZES["tiny"], {"hidden_size": WIDTH, "intermediate_size": WIDTH}
    sizes.SIZES[SIZE] = replace(tiny, talker=tiny.talker | width, predictor=tiny.predictor | width)
    write_checkpoint(folder, f"{SIZE}-custom-voice", key=FAMILY)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, norm in tensors.items():
        prefix, _, kind = name.removesuffix(".weight").rpartition(".")
        for channel in OUTLIERS if kind in READERS else ():
            norm[channel] /= factor
            for linear in READERS[kind]:
                tensors[f"{prefix}.{linear}.weight"][:, channel] *= factor
    save_file(tensors, path, metadata={"format": "pt"})


def run(checkpoint: Path, recipe: str, frames: int, forced: np.ndarray | None) -> ForcedRun:
    """Frames with the history of `forced` codes int64 [frames, K], or with that of the run itself."""
    whole, _, predictor = recipe.partition("/")
    request = ExportRequest(
        quant=whole,
        quant_for=((PREDICTOR, predictor),) if predictor else (),
        cache_length=frames + PROMPT_ROWS,
    )
    resolved = resolve(Source(checkpoint), request)
    model, family = Model(resolved, "BSHD"), open_family(FAMILY)
    kernel = float_activations if recipe == FULL else int8_per_block
    engine = EagerEngine(model.components, model.module, "BSHD", kernel)
    constants = resolved.runtime_constants
    return family.verification.teacher_forced_run(engine.stream(), constants, frames, forced)


def compared(found: ForcedRun, full: ForcedRun) -> Json:
    """The share of equal codes of each book, and the median distance of hidden values."""
    distances = [measure(*rows).norm for rows in zip(found.hidden, full.hidden, strict=True)]
    return {
        "codes": [float(share) for share in (found.codes == full.codes).mean(axis=0)],
        "hidden_distance": float(np.median(distances)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--factors", default="1,64", help="powers of two; 1 changes nothing")
    parser.add_argument("--recipes", default="w8,w8g128,w4,w4/w4,w4/w8g128")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--folder", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else {}
    for factor in map(int, arguments.factors.split(",")):
        checkpoint = arguments.folder / f"outliers-{factor}"
        if not checkpoint.exists():
            write_wide(checkpoint, factor)
        full = run(checkpoint, FULL, arguments.frames, None)
        rows[f"{factor}/{FULL}"] = {"sum": float(np.abs(full.hidden, dtype=np.float64).sum())}
        for recipe in arguments.recipes.split(","):
            key = f"{factor}/{recipe}"
            if key not in rows:
                rows[key] = compared(run(checkpoint, recipe, arguments.frames, full.codes), full)
                log.info("%s: %s", key, json.dumps(rows[key]))
    content = {"machine": describe_machine(None, "torch"), "frames": arguments.frames, "rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
