"""Adapters that peft saved are merged as peft merges them (`merge_and_unload`)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from voxport.model.adapter import Adapter
from voxport.model.checkpoint import Checkpoint
from voxport.model.checkpoint_layout import WeightFile

GOLDEN = Path(__file__).parent / "golden/peft"  # from tools/peft_golden.py
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def merged(case: str, base: Path) -> dict[str, torch.Tensor]:
    """The tensors that an adapter changes."""
    checkpoint = Checkpoint([WeightFile(base)])
    before = {name: checkpoint.tensor(name) for name in checkpoint.names}
    checkpoint.adapter = Adapter(GOLDEN / case, checkpoint, WeightFile(base))
    after = {name: checkpoint.tensor(name) for name in checkpoint.names}
    return {name: value for name, value in after.items() if not value.equal(before[name])}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_peft(case: str) -> None:
    expected = load_file(GOLDEN / case / "merged.safetensors")
    found = merged(case, GOLDEN / "base.safetensors")
    assert found.keys() == expected.keys() and found
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_of_float32_and_have_the_dtype_of_the_weight(dtype: torch.dtype, tmp_path: Path) -> None:
    base = {name: value.to(dtype) for name, value in load_file(GOLDEN / "base.safetensors").items()}
    save_file(base, tmp_path / "half.safetensors")
    save_file({name: value.float() for name, value in base.items()}, tmp_path / "float.safetensors")
    found, exact = (merged("plain", tmp_path / f"{name}.safetensors") for name in ("half", "float"))
    assert all(found[name].equal(value.to(dtype)) for name, value in exact.items())
    assert {value.dtype for value in found.values()} == {dtype}
