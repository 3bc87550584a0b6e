"""Writes `tests/parity/golden/peft`: adapters as peft saves them, and the weights that it merges.

Run it with peft installed (the files are from peft 0.21.2): python tools/peft_golden.py
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

GOLDEN = Path(__file__).parent.parent / "tests/parity/golden/peft"
LINEARS = {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]}
CASES: dict[str, dict[str, Any]] = {
    "plain": LINEARS,
    "rslora": LINEARS | {"use_rslora": True},
    "dora": LINEARS | {"use_dora": True, "target_modules": ["q_proj", "conv", "table"]},
    "patterns": LINEARS | {"rank_pattern": {"layers.1.q_proj": 1}, "alpha_pattern": {"v_proj": 5}},
    "saved": LINEARS | {"modules_to_save": ["conv"]},
    "table": LINEARS | {"target_modules": ["table", "conv"]},
    "biases": LINEARS | {"target_modules": ["fc"], "bias": "all"},
    "lora_bias": LINEARS | {"target_modules": ["fc"], "lora_bias": True},
    "fan_in": LINEARS | {"fan_in_fan_out": True},
    "part": LINEARS,  # of `layers` alone
}


class Model(nn.Module):
    """One layer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc, self.conv = nn.Embedding(6, 4), nn.Linear(4, 3), nn.Conv1d(4, 5, 3)
        sizes = {"q_proj": 4, "v_proj": 2}
        layer = {name: nn.Linear(4, size, bias=False) for name, size in sizes.items()}
        other = {name: nn.Linear(4, size, bias=False) for name, size in sizes.items()}
        self.layers = nn.ModuleList([nn.ModuleDict(layer), nn.ModuleDict(other)])


def main() -> None:
    from peft import LoraConfig, get_peft_model

    for name, options in CASES.items():
        torch.manual_seed(0)
        model = Model()
        save_file(model.state_dict(), GOLDEN / "base.safetensors")
        adapted = get_peft_model(model.layers if name == "part" else model, LoraConfig(**options))
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter += 0.5 * torch.randn_like(parameter)
        adapted.save_pretrained(GOLDEN / name)
        (GOLDEN / name / "README.md").unlink()
        config = GOLDEN / name / "adapter_config.json"
        config.write_text(
            json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "owner/base"})
        )
        merged, base = adapted.merge_and_unload().state_dict(), load_file(GOLDEN / "base.safetensors")
        start = "layers." if name == "part" else ""
        changed = {start + key: value for key, value in merged.items() if not value.equal(base[start + key])}
        save_file(changed, GOLDEN / name / "merged.safetensors")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    main()
