"""Areas of hostile input. Each makes the files of one case in its folder and returns the command to run."""

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from fuzz.cloning import cloning, codes, foreign_voice
from fuzz.conversion import conversion
from fuzz.files import OUT, SPEAK, Sources, copy, write_hash
from fuzz.harness import Command
from fuzz.mutate import (
    hostile_value,
    mutate_bytes,
    mutate_json,
    mutate_message,
    mutate_safetensors,
    write_json,
)
from voxport.bundle.manifest import MANIFEST


def manifest(rng: random.Random, folder: Path, sources: Sources) -> Command:
    bundle = copy(rng.choice([sources.speech, sources.speech, sources.recognition]), folder)
    path = bundle / MANIFEST
    document = json.loads(path.read_text())
    part = rng.choice(["all", "job", "components", "constants", "files", "voices"])
    if part == "components":
        document["job"]["components"] = mutate_json(rng, document["job"]["components"])
    elif part == "constants":
        document["job"]["constants"] = mutate_json(rng, document["job"]["constants"])
    elif part in document and rng.random() < 0.9:
        document[part] = mutate_json(rng, document[part])
    else:
        document = mutate_json(rng, document)
    path.write_bytes(write_json(rng, document))
    return _use(rng, bundle)


def signature(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """Lies about inputs, outputs, states and sizes of components, on every engine."""
    bundle = copy(
        rng.choice([sources.speech, sources.recognition, sources.executorch, sources.coreml]), folder
    )
    path = bundle / MANIFEST
    document = json.loads(path.read_text())
    component = rng.choice(document["job"]["components"])
    component["signature"] = mutate_json(rng, component["signature"])
    path.write_text(json.dumps(document))
    return _use(rng, bundle)


def voice(rng: random.Random, folder: Path, sources: Sources) -> Command:
    bundle = copy(sources.speech, folder)
    own = sorted((bundle / "voices").iterdir())[0]
    content = mutate_safetensors(rng, own.read_bytes())
    if rng.random() < 0.5:
        own.write_bytes(content)
        write_hash(rng, bundle, own)
        return _say(rng, bundle, "--voice", own.stem)
    (folder / "voice.safetensors").write_bytes(content)
    return _say(rng, bundle, "--voice", "voice.safetensors")


def prefix(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """Damaged rows in the user's own cache folder: speech goes on without them."""
    bundle = copy(sources.speech, folder)
    cache = Path(shutil.copytree(sources.prefixes, folder / "cache"))
    for path in cache.rglob("*.safetensors"):
        path.write_bytes(mutate_safetensors(rng, path.read_bytes()))
    command = _say(rng, bundle)
    return Command(command.argv, output=command.output, environment={"XDG_CACHE_HOME": str(cache)})


def tokenizer(rng: random.Random, folder: Path, sources: Sources) -> Command:
    bundle = copy(rng.choice([sources.speech, sources.recognition]), folder)
    path = bundle / "tekken.json"
    document = json.loads(path.read_text())
    part = rng.choice(["config", "special_tokens", "vocab", None])
    if part:
        document[part] = mutate_json(rng, document[part])
    else:
        document = mutate_json(rng, document)
    path.write_bytes(write_json(rng, document))
    write_hash(rng, bundle, path)
    return _use(rng, bundle)


def onnx(rng: random.Random, folder: Path, sources: Sources) -> Command:
    import onnx as library

    bundle = copy(rng.choice([sources.speech, sources.recognition]), folder)
    path = rng.choice(sorted(bundle.glob("*.onnx*")))
    if path.suffix == ".onnx" and rng.random() < 0.8:
        model = library.load(path, load_external_data=False)
        mutate_message(rng, model.graph if rng.random() < 0.9 else model)
        path.write_bytes(model.SerializeToString())
    else:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    write_hash(rng, bundle, path)
    return _use(rng, bundle)


def executorch(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """Words of the flatbuffer, of its header and of the segments behind it."""
    bundle = copy(sources.executorch, folder)
    path = rng.choice(sorted(bundle.glob("*.pte")))
    content = path.read_bytes()
    program = int.from_bytes(content[16:24], "little")  # of the extended header: size of the flatbuffer
    start, end = rng.choice([(0, 64), (32, program), (32, program), (program, len(content))])
    path.write_bytes(mutate_bytes(rng, content, start, end))
    write_hash(rng, bundle, path)
    return _say(rng, bundle)


def coreml(rng: random.Random, folder: Path, sources: Sources) -> Command:
    from coremltools.proto import Model_pb2

    bundle = copy(sources.coreml, folder)
    path = rng.choice([path for path in sorted(bundle.rglob("*.mlpackage/**/*")) if path.is_file()])
    if path.suffix == ".mlmodel" and rng.random() < 0.8:
        spec = Model_pb2.Model.FromString(path.read_bytes())
        mutate_message(rng, spec.mlProgram if rng.random() < 0.9 else spec)
        path.write_bytes(spec.SerializeToString())
    elif path.suffix == ".json":
        path.write_bytes(write_json(rng, mutate_json(rng, json.loads(path.read_text()))))
    else:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    write_hash(rng, bundle, path)
    package = next(part for part in path.parents if part.suffix == ".mlpackage")
    if rng.random() < 0.3:
        return Command(("mil", str(package.relative_to(folder))))
    return _say(rng, bundle)


def checkpoint(rng: random.Random, folder: Path, sources: Sources) -> Command:
    source = rng.choice(sources.checkpoints)
    target = copy(source, folder)
    path = rng.choice([path for path in sorted(target.rglob("*")) if path.is_file()])
    content = path.read_bytes()
    if path.suffix == ".json":
        content = write_json(rng, mutate_json(rng, json.loads(content)))
    elif path.suffix == ".safetensors":
        content = mutate_safetensors(rng, content)
    else:
        content = mutate_bytes(rng, content)
    path.write_bytes(content)
    if rng.random() < 0.5:
        return Command(("inspect", target.name))
    quant = rng.choice(["w4", "w8", "8da4w", "none"])
    return Command(("export", "--checkpoint", target.name, "--target", "onnx", "--quant", quant, "--dry-run"))


def audio(rng: random.Random, folder: Path, sources: Sources) -> Command:
    bundle = copy(sources.recognition, folder)
    rate = rng.choice([1, 100, 8000, 16000, 44100, 192000, 2**31 - 1])
    frames = rng.choice([0, 1, 100, 4000])
    samples = np.random.default_rng(rng.getrandbits(32)).standard_normal((frames, rng.choice([1, 1, 2, 7])))
    name, subtype = rng.choice(
        [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"), ("FLAC", None), ("OGG", None)]
    )
    scales = [0, 1e-6, 0.1, 1e30, np.inf, np.nan]
    if name == "OGG":  # its encoder, which runs in this process, crashes on extreme values
        rate, scales = min(rate, 192_000), scales[:3]
    samples *= rng.choice(scales)
    file = io.BytesIO()
    try:
        soundfile.write(file, samples, rate, format=name, subtype=subtype)
    except (soundfile.LibsndfileError, AssertionError):  # not every format holds every rate or value
        file = io.BytesIO()
        soundfile.write(file, np.zeros(100), 16000, format="WAV", subtype="FLOAT")
    content = file.getvalue()
    if rng.random() < 0.7:
        content = mutate_bytes(rng, content, 0, rng.choice([60, None]))
    gain = rng.choice(["auto", "off", "-200", "40", "nan", "1e400"])
    options = ("--bundle", bundle.name, "--threads", "1", "--gain", gain)
    if rng.random() < 0.3:
        return Command(("transcribe", "-", "--live", *options), stdin=content)
    (folder / "sound.wav").write_bytes(content)
    return Command(("transcribe", "sound.wav", "-o", "out.txt", *options), output="out.txt")


def trace(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """Arrays of wrong names, types and shapes, and damaged files."""
    bundle = copy(sources.recognition, folder)
    sound = np.ones((rng.choice([0, 1, 1280, 4000]), *rng.choice([(), (), (1,)])))
    arrays: dict[str, Any] = {
        "audio": (sound * rng.choice([0, 0.1, 1e30, np.nan])).astype(rng.choice(["<f4", ">f8", "U9"]))
    }
    if rng.random() < 0.5:
        arrays[rng.choice(["delay", "codes", "\x1b"])] = np.array(
            rng.choice([[6], [10**6], [-1], [], [1e30]])
        )
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = file.getvalue()
    (folder / "in.npz").write_bytes(mutate_bytes(rng, content) if rng.random() < 0.6 else content)
    return Command(("trace", bundle.name, "--inputs", "in.npz", "-o", "out.npz"), output="out.npz")


def text(rng: random.Random, folder: Path, sources: Sources) -> Command:
    bundle = copy(sources.speech, folder)
    content = _hostile_text(rng)
    encoded = content.encode("utf-8", rng.choice(["surrogatepass", "replace"]))
    if rng.random() < 0.3:
        encoded = mutate_bytes(rng, encoded)
    options = rng.choice([(), ("--verbatim",), ("--language", rng.choice(["fr", "hi", "xx", ""]))])
    way = rng.choice(["argument", "stdin", "stream", "file", "closed"])
    if way == "file":
        (folder / "text.txt").write_bytes(encoded)
        return _say(rng, bundle, "--file", "text.txt", *options, text=None)
    if way == "argument":
        argument = os.fsdecode(encoded).replace("\0", "")[:100_000]
        return _say(rng, bundle, *options, text=argument)
    command = _say(rng, bundle, *options, text="-")
    argv, output = command.argv, command.output
    if way == "stream":
        argv, output = (*(part for part in argv if part not in ("-o", OUT)), "--stream"), None
    return Command(argv, stdin=None if way == "closed" else encoded, output=output)


def options(rng: random.Random, folder: Path, sources: Sources) -> Command:
    """Hostile values of options, and a disk that is full."""
    bundle = copy(sources.speech, folder)
    names = (
        "--threads",
        "--seed",
        "--max-frames",
        "--budget",
        "--pause",
        "--voice",
        "--chunk-frames",
        "--device",
    )
    argv = ["say", rng.choice(["Hello.", ""]), "--bundle", bundle.name, "--max-frames", "2", "-o", OUT]
    for name in rng.sample(names, rng.choice([1, 1, 2])):
        argv += [name, _argument(hostile_value(rng))]
    if rng.random() < 0.2:
        argv[-1 if rng.random() < 0.5 else 3] = rng.choice(
            ["missing", "/dev/full", "", "a" * 300, ".", "out\x1b.wav"]
        )
    if rng.random() < 0.2:
        argv = ["transcribe", "/dev/zero", "--bundle", bundle.name] if rng.random() < 0.5 else argv[:-1]
    size = rng.choice([None, None, 4096])  # stderr is a file as well, and needs less
    return Command(tuple(argv), output=OUT, file_bytes=size)


AREAS: dict[str, Callable[[random.Random, Path, Sources], Command]] = {
    area.__name__: area
    for area in (
        manifest,
        signature,
        voice,
        prefix,
        tokenizer,
        onnx,
        executorch,
        coreml,
        checkpoint,
        audio,
        trace,
        text,
        options,
        cloning,
        foreign_voice,
        codes,
        conversion,
    )
}


def _argument(value: object) -> str:
    return (
        (value if isinstance(value, str) else json.dumps(value))
        .replace("\0", "")[:1000]
        .encode("utf-8", "replace")
        .decode()
    )


def _use(rng: random.Random, bundle: Path) -> Command:
    """One of the commands that open a bundle; mostly the one that runs it."""
    if rng.random() < 0.2:
        name = rng.choice(["info", "voices", "list"])
        return Command((name, "." if name == "list" else bundle.name))
    if not (bundle / "voices").exists():
        seconds = rng.choice([0.05, 0.3])
        soundfile.write(bundle.parent / "sound.wav", np.zeros(int(16000 * seconds)), 16000)
        check = () if rng.random() < 0.5 else ("--no-check",)
        argv = ("transcribe", "sound.wav", "--bundle", bundle.name, "--threads", "1", "-o", "out.txt")
        return Command((*argv, *check), output="out.txt")
    return _say(rng, bundle)


def _say(rng: random.Random, bundle: Path, *options: str, text: str | None = "Hi.") -> Command:
    check = () if rng.random() < 0.5 else ("--no-check",)
    words = () if text is None else (text,)
    return Command(("say", *words, "--bundle", bundle.name, *SPEAK, *options, *check), output=OUT)


def _hostile_text(rng: random.Random) -> str:
    pools = (
        lambda: "".join(
            chr(rng.choice([rng.randrange(32), rng.randrange(0x300), 0x200D, 0x202E])) for _ in range(40)
        ),
        lambda: "".join(chr(rng.randrange(0x110000)) for _ in range(rng.choice([1, 30, 300]))),
        lambda: rng.choice("a.,\"'*_`[(<#-😀\u0301\u0640") * rng.choice([1, 100, 5000]),
        lambda: "[" * 2000 + "](" * 500,
        lambda: "5,000.50 $ http://a.b/" + "%20" * rng.choice([1, 1000]),
        lambda: "&" + "amp;" * 300 + "<b>" * 300,
        lambda: "1" * rng.choice([10, 400, 5000]) + rng.choice(["€", "%", " $", "²"]),
        lambda: "שלום مرحبا \u0627\u0644\u202e " * rng.choice([1, 50]),
        lambda: " \u00a0\u2003\ufeff\u200b\t\n" * rng.choice([1, 200]),
        lambda: "[AUDIO] </s> <s>[BEGIN_AUDIO] <SPECIAL_37>",
    )
    return " ".join(rng.choice(pools)() for _ in range(rng.choice([1, 1, 3])))
