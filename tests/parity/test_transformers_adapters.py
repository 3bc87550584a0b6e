"""An adapter with the names of transformers changes a base of transformers and a published one alike."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.model.transformers_model import Sizes, build, published

from voxport.export.resolve import Source

LAYERS = (  # the names that peft gives them
    "model.language_model.layers.1.self_attn.q_proj",
    "model.language_model.layers.0.self_attn.k_proj",
    "model.audio_tower.layers.0.self_attn.q_proj",
    "model.audio_tower.layers.1.mlp.down_proj",
    "model.multi_modal_projector.linear_2",
)
BIAS = "model.audio_tower.layers.0.self_attn.q_proj.bias"
TABLE = "model.language_model.embed_tokens"  # peft saves it whole, and what is added to it
SCALE = 3 / 2


@pytest.fixture(scope="module")
def model() -> Any:
    return build(Sizes())


def write_adapter(model: Any, folder: Path) -> Any:
    """An adapter, and the model with it."""
    changed, tensors = copy.deepcopy(model), dict[str, torch.Tensor]()
    state, generator = changed.state_dict(), torch.Generator().manual_seed(0)
    for path in LAYERS:
        weight = state[f"{path}.weight"]
        b, a = (torch.randn(*size, generator=generator) for size in ((len(weight), 2), (2, weight.shape[1])))
        tensors |= {
            f"base_model.model.{path}.lora_{part}.weight": value for part, value in (("A", a), ("B", b))
        }
        weight += SCALE * (b @ a)
    table = state[f"{TABLE}.weight"]
    table += 1
    b, a = (torch.randn(*size, generator=generator) for size in ((table.shape[1], 2), (2, len(table))))
    tensors |= {
        f"base_model.model.{TABLE}.base_layer.weight": table.clone(),
        f"base_model.model.{TABLE}.lora_embedding_A": a,
        f"base_model.model.{TABLE}.lora_embedding_B": b,
    }
    table += SCALE * (b @ a).T
    state[BIAS] += torch.randn(state[BIAS].shape, generator=generator)
    tensors[f"base_model.model.{BIAS.replace('.bias', '.base_layer.bias')}"] = state[BIAS].clone()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "lora_only"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return changed


@pytest.mark.parametrize("layout", ["transformers", "published"])
def test_the_merged_weights_are_those_of_transformers(model: Any, tmp_path: Path, layout: str) -> None:
    base, merged = tmp_path / "base", tmp_path / "merged"
    write_adapter(model, tmp_path / "adapter").save_pretrained(merged)
    if layout == "transformers":
        model.save_pretrained(base)
    else:
        published(model, Sizes(), base)
    plain, found, expected = Source(base), Source(base, (), tmp_path / "adapter"), Source(merged)
    changed = 0
    for name in expected.checkpoint.names:
        value = found.checkpoint.tensor(name)
        torch.testing.assert_close(value, expected.checkpoint.tensor(name), rtol=1e-6, atol=1e-6)
        changed += not value.equal(plain.checkpoint.tensor(name))
    assert changed == len(LAYERS) + 2
