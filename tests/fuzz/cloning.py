"""Areas of hostile input of a model that clones voices: its bundle, voices of other programs, and codes."""

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzz.files import OUT, SPEAK, Sources, copy, write_hash
from fuzz.harness import Command
from fuzz.mutate import hostile_value, mutate_bytes, mutate_json, mutate_safetensors, write_json
from voxport.bundle.manifest import MANIFEST


def cloning(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """The manifest and the vocabulary of a bundle."""
    bundle = copy(sources.cloning, folder)
    if rng.random() < 0.6:
        document = json.loads((bundle / MANIFEST).read_text())
        document["job"]["constants"] = mutate_json(rng, document["job"]["constants"])
        (bundle / MANIFEST).write_bytes(write_json(rng, document))
    else:
        path = bundle / rng.choice(["vocab.json", "merges.txt", "tokenizer_config.json"])
        content = path.read_bytes()
        is_json = path.suffix == ".json" and rng.random() < 0.6
        path.write_bytes(
            write_json(rng, mutate_json(rng, json.loads(content))) if is_json else mutate_bytes(rng, content)
        )
        write_hash(rng, bundle, path)
    (folder / "voice.npy").write_bytes(_npy(np.zeros(96, np.float32)))
    argv = ("voice", "import", "anna", "voice.npy", "-o", "voice.safetensors", "--bundle", bundle.name)
    if rng.random() < 0.3:
        return Command(argv, output="voice.safetensors")
    return Command(("say", "Hi.", "--bundle", bundle.name, *SPEAK), output=OUT)


def foreign_voice(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """Pickles, archives and vectors: wrong values, types and shapes, and damaged files."""
    bundle, suffix = copy(sources.cloning, folder), rng.choice([".pt", ".pt", ".pt", ".npy", ".safetensors"])
    content = _demo_voice(rng) if suffix == ".pt" else _npy(np.asarray(_value(rng)))
    if suffix == ".safetensors":
        content = mutate_safetensors(rng, _safetensors())
    elif rng.random() < 0.6:
        content = mutate_bytes(rng, content)
    (folder / f"voice{suffix}").write_bytes(content)
    out = "voice.safetensors" if suffix != ".safetensors" else "other.safetensors"
    argv = ("voice", "import", "anna", f"voice{suffix}", "-o", out, "--bundle", bundle.name)
    if suffix == ".safetensors" and rng.random() < 0.5:
        return Command(
            ("say", "Hi.", "--voice", "voice.safetensors", "--bundle", bundle.name, *SPEAK), output=OUT
        )
    return Command(argv, output=out)


def codes(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """Arrays of codes to decode."""
    bundle = copy(sources.cloning, folder)
    shape = rng.choice([(3, 6), (3, 6), (0, 6), (3, 7), (3,), (1, 3, 6)])
    array = np.full(shape, rng.choice([0, 5, -1, 2**40])).astype(rng.choice(["<i8", ">i4", "<f4", "U3"]))
    arrays: dict[str, Any] = {"codes": array, "sample_rate": np.array(rng.choice([24_000, 24_000, 0, -1]))}
    file = io.BytesIO()
    np.savez(file, **{name: value for name, value in arrays.items() if rng.random() < 0.9})
    content = file.getvalue()
    (folder / "in.npz").write_bytes(mutate_bytes(rng, content) if rng.random() < 0.6 else content)
    return Command(("codec", "decode", "in.npz", OUT, "--bundle", bundle.name, "--threads", "1"), output=OUT)


def _demo_voice(rng: random.Random) -> bytes:
    item = {
        "ref_code": torch.zeros(4, 6, dtype=torch.long),
        "ref_spk_embedding": torch.zeros(96),
        "x_vector_only_mode": False,
        "icl_mode": True,
        "ref_text": "Hello.",
    }
    if rng.random() < 0.7:
        item[rng.choice(list(item))] = _value(rng)
    file = io.BytesIO()
    torch.save(rng.choice([{"items": [item]}, {"items": [item]}, {"items": [item] * 2}, [item], item]), file)
    return file.getvalue()


def _value(rng: random.Random) -> object:
    tensors = (
        torch.full((96,), torch.inf),
        torch.zeros(10**4, dtype=torch.float16),
        torch.zeros(96, 96).T,
        torch.zeros(()),
        torch.zeros(4, 6, dtype=torch.int32) - 1,
    )
    return rng.choice([*tensors, hostile_value(rng), None])


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    try:
        np.save(file, array, allow_pickle=True)
    except (ValueError, TypeError):  # not every value is an array
        return b"\x93NUMPY"
    return file.getvalue()


def _safetensors() -> bytes:
    from safetensors.numpy import save

    return save({"speaker_embedding": np.zeros(96, np.float32)})
