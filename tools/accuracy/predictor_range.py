"""Largest absolute values inside the code predictor of Qwen3-TTS, in eager PyTorch with single precision.

    predictor_range.py --checkpoint DIR --frames 16 -o OUT.json

The predictor runs behind the talker, in the free run of verification. `headroom` is how many times larger all
values of a kind could be within the range of half precision.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.model.layers.basic import RMSNorm
from voxport.model.qwen3_tts.blocks import GatedMLP, NormedAttention
from voxport.model.qwen3_tts.predictor import CodePredictor
from voxport.runtime.families import open_family

GRAPH = "code_predictor"
FLOAT16_MAX = 65504.0
Hook = Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]


class Largest:
    """The largest absolute value of each kind, in all calls."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, kind: str, value: torch.Tensor) -> None:
        self.values[kind] = max(self.values.get(kind, 0.0), float(value.abs().max()))

    def norm(self, _: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """The input of a norm of a block is the residual. Half precision would hold its squares too."""
        self.add("residual", inputs[0])
        self.add("square of the residual, inside a norm", inputs[0] ** 2)
        self.add("output of a norm", output)

    def head_norm(self, _: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self.add("queries and keys before their norm", inputs[0])
        self.add("queries and keys behind their norm", output)

    def gate_and_up(self, _: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        gate, up = output.chunk(2, dim=-1)
        self.add("w1 (gate)", gate)
        self.add("w3 (up)", up)
        self.add("SiLU of the gate", F.silu(gate))

    def down(self, _: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        self.add("input of w2 (SiLU product)", inputs[0])
        self.add("output of w2", output)

    def output(self, kind: str) -> Hook:
        return lambda module, inputs, output: self.add(kind, output)


def watch(predictor: CodePredictor, largest: Largest) -> None:
    """Hooks on every layer of the predictor."""
    for part in predictor.modules():
        if isinstance(part, NormedAttention):
            wo: Any = part.wo  # typed as a function
            wo.register_forward_hook(largest.output("output of attention"))
            for norm in (part.q_norm, part.k_norm):
                norm.register_forward_hook(largest.head_norm)
        if isinstance(part, GatedMLP):
            part.w13.register_forward_hook(largest.gate_and_up)
            w2: Any = part.w2  # typed as a function
            w2.register_forward_hook(largest.down)
    norms = [norm for block in predictor.blocks for norm in (block.attention_norm, block.mlp_norm)]
    for norm in (*norms, predictor.norm):
        assert isinstance(norm, RMSNorm)
        norm.register_forward_hook(largest.norm)
    for head in predictor.heads:
        head.register_forward_hook(largest.output("logits"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    resolved = resolve(Source(arguments.checkpoint), ExportRequest(quant="none", cache_length=256))
    model, largest = Model(resolved, "BSHD"), Largest()
    predictor = model.graph(GRAPH).module
    assert isinstance(predictor, CodePredictor)
    watch(predictor, largest)
    family = open_family(resolved.source.family.name)
    engine = EagerEngine(model.components, model.module, "BSHD")
    rollout = family.verification.rollout
    assert rollout is not None
    rollout(engine.stream(), resolved.runtime_constants, arguments.frames)
    result = {
        "layers": len(predictor.blocks),
        "width": predictor.config.hidden_size,
        "frames": arguments.frames,
        "half_max": FLOAT16_MAX,
        "largest": {
            kind: {"value": value, "headroom": FLOAT16_MAX / value} for kind, value in largest.values.items()
        },
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for kind, value in largest.values.items():
        print(f"{kind:40} {value:10.3g} {FLOAT16_MAX / value:10.3g}")


if __name__ == "__main__":
    main()
