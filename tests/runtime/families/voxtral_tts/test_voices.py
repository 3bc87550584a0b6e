"""Voice files: the float types of published voices are read, and other files are refused by name."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.stand_ins import stand_in

from voxport.bundle.bounds import MAX_VOICE_ROWS
from voxport.bundle.errors import UsageError
from voxport.runtime.families.voxtral_tts.task import choose_voice

BUNDLE = stand_in(manifest=stand_in(voices={}), folder=None)
ROWS = torch.linspace(-2, 2, 12).reshape(3, 4)


def read(path: Path) -> np.ndarray:
    return choose_voice(BUNDLE, str(path), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_types_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"embedding": ROWS.to(dtype)}, tmp_path / "voice.safetensors")
    rows = read(tmp_path / "voice.safetensors")
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, ROWS.to(dtype).float().numpy())


@pytest.mark.parametrize(
    "tensors, named",
    [
        ({"embedding": ROWS.to(torch.float8_e4m3fn)}, "F8_E4M3"),
        ({"embedding": ROWS.to(torch.float64)}, "F64"),
        ({"embedding": ROWS.to(torch.int8)}, "I8"),
        ({"embedding": ROWS[:, :3].contiguous()}, r"\[3, 3\]"),
        ({"embedding": ROWS[:0]}, r"\[0, 4\]"),
        ({"embedding": ROWS[0].clone()}, r"\[4\]"),
        ({"embedding": torch.zeros(MAX_VOICE_ROWS + 1, 4)}, "to 8192 rows"),
        ({"embedding": torch.full((3, 4), torch.inf, dtype=torch.bfloat16)}, "not finite"),
        ({"rows": ROWS}, "no such key"),
    ],
)
def test_other_files_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, torch.Tensor], named: str
) -> None:
    save_file(tensors, tmp_path / "voice.safetensors")
    with pytest.raises(UsageError, match=f"voice.safetensors: .*{named}"):
        read(tmp_path / "voice.safetensors")


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x10" + bytes(7) + b'{"embedding": 1 }'])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "voice.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        read(tmp_path / "voice.safetensors")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "voice.safetensors")
    with pytest.raises(UsageError, match="not a file"):
        read(tmp_path / "voice.safetensors")


def test_a_file_far_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "voice.safetensors", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(UsageError, match="expected at most"):
        read(tmp_path / "voice.safetensors")
