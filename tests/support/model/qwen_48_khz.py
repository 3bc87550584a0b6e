"""A Qwen3-TTS folder whose speech tokenizer speaks at 48 kHz, as the public trainer of such codecs writes it.

It appends a stage of factor 2 to `upsample_rates`, doubles `output_sample_rate` and `decode_upsample_rate`,
and trains the stages of the decoder. Recordings stay at 24 kHz.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from voxport.model.checkpoint import expected_tensors
from voxport.model.families import open_family
from voxport.model.synthetic.checkpoint import random_checkpoint

CODEC = "speech_tokenizer"
RATE, FRAME = 48000, 3840


def write_48_khz(folder: Path) -> Path:
    """A copy of the embedded Base model with random weights for the tensors that are new."""
    shutil.copytree(random_checkpoint("qwen3_tts"), folder)
    path = folder / CODEC / "config.json"
    content = json.loads(path.read_text())
    content["decoder_config"]["upsample_rates"].append(2)
    path.write_text(json.dumps(content | {"output_sample_rate": RATE, "decode_upsample_rate": FRAME}))
    family, file = open_family("qwen3_tts"), folder / CODEC / "model.safetensors"
    root = family.build_all(family.layout.load_config(folder))
    expected, generator = expected_tensors(root), torch.Generator().manual_seed(0)
    found = {
        name: value
        for name, value in load_file(file).items()
        if not name.startswith("decoder.decoder.") or f"{CODEC}.{name}" in expected
    }
    for name, shape in expected.items():
        own = name.removeprefix(f"{CODEC}.")
        if own.startswith("decoder.decoder.") and (own not in found or found[own].shape != shape):
            spread = 0.5 if len(shape) == 1 else torch.Size(shape[1:]).numel() ** -0.5
            found[own] = spread * torch.randn(shape, generator=generator)
    save_file(found, file)
    return folder
