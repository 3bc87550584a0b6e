"""The area of hostile input to `convert`: weights, configuration and voices of a folder of mlx-audio."""

import json
import random
from pathlib import Path

from fuzz.files import Sources, copy
from fuzz.harness import Command
from fuzz.mutate import hostile_value, mutate_bytes, mutate_json, mutate_safetensors, write_json

OUT = "out"


def conversion(rng: random.Random, folder: Path, sources: Sources) -> Command:
    source = copy(rng.choice(sources.converted), folder)
    path = rng.choice(
        [path for path in sorted(source.rglob("*")) if path.suffix in (".json", ".safetensors")]
    )
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        path.write_bytes(mutate_safetensors(rng, content))
    elif rng.random() < 0.8:
        path.write_bytes(write_json(rng, mutate_json(rng, json.loads(content))))
    else:
        path.write_bytes(mutate_bytes(rng, content))
    if rng.random() < 0.4:  # mlx-audio needs only config.json
        (source / "params.json").unlink(missing_ok=True)
    if rng.random() < 0.2:
        table = {"weight_map": {"a": hostile_value(rng)}}
        (source / "model.safetensors").rename(source / "other.safetensors")
        (source / "model.safetensors.index.json").write_text(json.dumps(table))
    if rng.random() < 0.3:
        return Command(("inspect", source.name))
    to = rng.choice(["published", "mlx"])
    dtype = rng.choice([(), (), ("--dtype", "f16"), ("--dtype", "f32")])
    quant = ("--quant", "w4") if to == "mlx" and rng.random() < 0.3 else ()
    return Command(("convert", source.name, OUT, "--to", to, *dtype, *quant))
