"""Kinds of hostile input. Each makes the files of one case and gives the arguments of the command."""

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from fuzz.mutate import TEXTS, hostile_value, mutate_bytes, mutate_file
from voxport.bundle.manifest import MANIFEST, file_entry

SPEAK = ("--max-frames", "2", "--threads", "1", "-o", "out.wav")
SAY = ("say", "Hi.", "--bundle", "input", *SPEAK)
TRANSCRIBE = ("transcribe", "sound.wav", "--bundle", "input", "--threads", "1", "-o", "out.txt")
IMPORT = ("voice", "import", "anna", "voice{}", "-o", "new.safetensors", "--bundle", "input")
TRACE = ("trace", "input", "--inputs", "in.npz", "-o", "out.npz")
DECODE = ("codec", "decode", "in.npz", "out.wav", "--bundle", "input", "--threads", "1")
EXPORT = ("export", "--checkpoint", "input", "--target", "onnx", "--quant", "w4", "--dry-run")
CONVERT = ("convert", "input", "out", "--to")
Sources = dict[str, Path]  # undamaged bundles and checkpoints


@dataclass(frozen=True)
class Command:
    """`stdin` None is closed. `file_bytes` bounds each file that the child writes, as a full disk does."""

    argv: tuple[str, ...]
    stdin: bytes | None = b""
    environment: tuple[tuple[str, str], ...] = ()
    file_bytes: int | None = None


def damaged(
    sources: tuple[str, ...],
    files: tuple[str, ...],
    commands: tuple[tuple[str, ...], ...],
    inside: tuple[str, ...],
    rng: random.Random,
    folder: Path,
    places: Sources,
) -> Command:
    """A copy of a source in which one file is damaged. Its hash is usually written, as an author could."""
    name = rng.choice(sources)
    copy = Path(shutil.copytree(places[name], folder / "input"))
    path = rng.choice([path for path in sorted(copy.glob(rng.choice(files))) if path.is_file()])
    mutate_file(rng, path, rng.choice(inside))
    if (copy / MANIFEST).exists() and path.name != MANIFEST and rng.random() < 0.85:
        document = json.loads((copy / MANIFEST).read_text())
        document["files"][path.relative_to(copy).as_posix()] = file_entry(path).model_dump()
        (copy / MANIFEST).write_text(json.dumps(document))
    argv = rng.choice(commands)
    if name == "recognition" and argv == SAY:
        soundfile.write(folder / "sound.wav", np.zeros(4800), 16000)
        argv = TRANSCRIBE
    is_optional = argv in (SAY, TRANSCRIBE) and name != "coreai"
    check = ("--no-check",) if is_optional and rng.random() < 0.5 else ()
    return Command((*argv, *check))


def prefix(rng: random.Random, folder: Path, places: Sources) -> Command:
    """Damaged rows in the user's own cache folder: speech goes on without them."""
    (folder / "input").symlink_to(places["speech"])
    cache = Path(shutil.copytree(places["prefixes"], folder / "cache"))
    for path in cache.rglob("*.safetensors"):
        mutate_file(rng, path)
    return Command(SAY, environment=(("XDG_CACHE_HOME", str(cache)),))


def voice(rng: random.Random, folder: Path, places: Sources) -> Command:
    """Voices of other programs: pickles, archives and vectors, with wrong values or damaged."""
    (folder / "input").symlink_to(places["cloning"])
    suffix, file = rng.choice([".pt", ".npy", ".safetensors"]), io.BytesIO()
    if suffix == ".pt":
        item: dict[str, Any] = {"x_vector_only_mode": False, "icl_mode": True, "ref_text": "Hello."}
        item |= {"ref_code": torch.zeros(4, 6, dtype=torch.long), "ref_spk_embedding": torch.zeros(96)}
        item[rng.choice(list(item))] = rng.choice([hostile_value(rng), torch.full((96,), torch.inf), None])
        torch.save(rng.choice([{"items": [item]}, {"items": [item] * 2}, [item], item]), file)
    elif suffix == ".npy":
        shape, kind = rng.choice([(96,), (10**4,), (96, 96), ()]), rng.choice(["<f4", ">f8", "<i4", "U3"])
        np.save(file, np.zeros(shape).astype(kind))
    else:
        shutil.copy(next((places["speech"] / "voices").iterdir()), folder / "voice.safetensors")
        mutate_file(rng, folder / "voice.safetensors")
        if rng.random() < 0.5:
            return Command((*SAY, "--voice", "voice.safetensors"))
        return Command(tuple(part.format(suffix) for part in IMPORT))
    content = file.getvalue()
    (folder / f"voice{suffix}").write_bytes(mutate_bytes(rng, content) if rng.random() < 0.6 else content)
    return Command(tuple(part.format(suffix) for part in IMPORT))


def arrays(rng: random.Random, folder: Path, places: Sources) -> Command:
    """Arrays of codes and of traces, with wrong names, types, shapes and values."""
    argv, source = rng.choice([(TRACE, "recognition"), (DECODE, "cloning")])
    (folder / "input").symlink_to(places[source])
    kind = rng.choice(["<f4", ">f8", "<i8", ">i4", "U9"])
    shape = rng.choice([(0,), (4000,), (1280, 1), (3, 6), (3, 7), (1, 3, 6)])
    value = rng.choice([0, 5, -1, 2**31 - 1])
    found: dict[str, Any] = {
        "audio": np.full(shape, value).astype(kind),
        "codes": np.full(shape, value).astype(kind),
    }
    found |= {"sample_rate": np.array(rng.choice([24_000, 0, -1]))}
    found |= {rng.choice(["delay", "\x1b"]): found["codes"]}
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in found.items() if rng.random() < 0.8})
    content = file.getvalue()
    (folder / "in.npz").write_bytes(mutate_bytes(rng, content) if rng.random() < 0.6 else content)
    return Command(argv)


def audio(rng: random.Random, folder: Path, places: Sources) -> Command:
    (folder / "input").symlink_to(places["recognition"])
    rate, channels = rng.choice([1, 8000, 16000, 44100, 192_000]), rng.choice([1, 1, 2, 7])
    samples = np.random.default_rng(rng.getrandbits(32)).standard_normal((rng.choice([0, 1, 4000]), channels))
    name, subtype = rng.choice([("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", None), ("OGG", None)])
    scale = rng.choice([0, 0.1] if name == "OGG" else [0, 1e-6, 0.1, 1e30, np.inf, np.nan])
    file = io.BytesIO()
    try:
        soundfile.write(file, samples * scale, rate, format=name, subtype=subtype)
    except (soundfile.LibsndfileError, AssertionError):  # not every format holds every rate
        file = io.BytesIO(b"RIFF")
    content = file.getvalue()
    content = mutate_bytes(rng, content, 0, rng.choice([60, None])) if rng.random() < 0.7 else content
    gain = ("--gain", rng.choice(["auto", "off", "-200", "40", "nan", "1e400"]))
    if rng.random() < 0.3:
        return Command((*TRANSCRIBE[:1], "-", "--live", *TRANSCRIBE[2:], *gain), stdin=content)
    (folder / "sound.wav").write_bytes(content)
    return Command((*TRANSCRIBE, *gain))


def text(rng: random.Random, folder: Path, places: Sources) -> Command:
    (folder / "input").symlink_to(places["speech"])
    pools = (
        "".join(chr(rng.choice([rng.randrange(32), rng.randrange(0x300), 0x200D])) for _ in range(40)),
        "".join(chr(rng.randrange(0x110000)) for _ in range(rng.choice([1, 30, 300]))),
        rng.choice("a.,\"'*_`[(<#-😀\u0301\u0640") * rng.choice([1, 100, 5000]),
        "[" * 2000 + "](" * 500 + "&" + "amp;" * 300 + "<b>" * 300,
        "5,000.50 $ http://a.b/" + "%20" * 1000 + "1" * rng.choice([10, 5000]) + rng.choice("€%²"),
        "שלום مرحبا \u0627\u0644\u202e \u00a0\u2003\ufeff\u200b\t\n" * rng.choice([1, 200]),
        "[AUDIO] </s> <s>[BEGIN_AUDIO] <SPECIAL_37>",
    )
    content = " ".join(rng.choices(pools, k=rng.choice([1, 1, 3]))).encode("utf-8", "surrogatepass")
    content = mutate_bytes(rng, content) if rng.random() < 0.3 else content
    options = rng.choice([(), ("--verbatim",), ("--language", rng.choice(["fr", "hi", "xx", ""]))])
    match rng.choice(["argument", "stdin", "stream", "file", "closed"]):
        case "argument":
            argument = os.fsdecode(content).replace("\0", "")[:100_000]
            return Command(("say", argument, *SAY[2:], *options))
        case "file":
            (folder / "text.txt").write_bytes(content)
            return Command(("say", "--file", "text.txt", *SAY[2:], *options))
        case "stream":
            return Command(("say", "-", *SAY[2:-2], "--stream", *options), stdin=content)
        case way:
            return Command(("say", "-", *SAY[2:], *options), stdin=None if way == "closed" else content)


def options(rng: random.Random, folder: Path, places: Sources) -> Command:
    """Hostile values of options, and a disk that is full."""
    (folder / "input").symlink_to(places["speech"])
    argv = list(SAY)
    names = ("--threads", "--seed", "--max-frames", "--budget", "--pause", "--voice", "--chunk-frames")
    for name in rng.sample(names, rng.choice([1, 1, 2])):
        value = hostile_value(rng)
        shown = (value if isinstance(value, str) else json.dumps(value)).replace("\0", "")[:1000]
        argv += [name, shown.encode("utf-8", "replace").decode()]
    if rng.random() < 0.2:
        argv[rng.choice([-1, 3])] = rng.choice([*TEXTS[:4], "missing", "/dev/full", "out\x1b.wav"])
    elif rng.random() < 0.2:
        argv = ["transcribe", "/dev/zero", "--bundle", "input"] if rng.random() < 0.5 else argv[:-1]
    return Command(tuple(argv), file_bytes=rng.choice([None, None, 4096]))


LOOK = (SAY, SAY, SAY, ("info", "input"), ("voices", "input"), ("list", "."))
MANIFEST_PARTS = ("", "job", "job.components", "job.constants", "files", "voices")
ANY = ("",)
CHECKPOINTS = ("voxtral_tts", "voxtral_realtime", "qwen3_tts")
CONVERTED = tuple(f"{name} for MLX" for name in CHECKPOINTS)
TABLE: dict[str, tuple[Any, ...]] = {  # sources, files that are damaged, commands, parts of a JSON document
    "manifest": (("speech", "recognition", "cloning"), (MANIFEST,), LOOK, MANIFEST_PARTS),
    "signature": (
        ("speech", "executorch", "coreml", "coreai"),
        (MANIFEST,),
        (SAY,),
        ("job.components.signature",),
    ),
    "voice of the bundle": (("speech",), ("voices/*",), (SAY,), ANY),
    "tokenizer": (
        ("speech", "recognition"),
        ("tekken.json",),
        LOOK,
        ("", "config", "special_tokens", "vocab"),
    ),
    "vocabulary": (("cloning",), ("vocab.json", "merges.txt", "tokenizer_config.json"), (SAY,), ANY),
    "onnx": (("speech", "recognition"), ("*.onnx*",), (SAY,), ANY),
    "executorch": (("executorch",), ("*.pte",), (SAY,), ANY),
    "coreml": (("coreml",), ("*.mlpackage/**/*",), (SAY, SAY, ("mil", "input/backbone.mlpackage")), ANY),
    "coreai": (("coreai",), ("*.aimodel/*",), (SAY,), ANY),
    "checkpoint": (CHECKPOINTS, ("**/*",), (("inspect", "input"), EXPORT), ANY),
    "conversion": (
        CONVERTED,
        ("**/*",),
        (("inspect", "input"), (*CONVERT, "published"), (*CONVERT, "mlx", "--dtype", "f16")),
        ANY,
    ),
}
AREAS: dict[str, Callable[[random.Random, Path, Sources], Command]] = {
    **{name: partial(damaged, *row) for name, row in TABLE.items()},
    **{make.__name__: make for make in (prefix, voice, arrays, audio, text, options)},
}
