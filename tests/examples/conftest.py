"""Bundles for the runners of `examples`, one of each family, with `vectors.json`, and hostile ones."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.export.cache import ExportCache
from support.export.short_verification import few_calls

from voxport.bundle.manifest import Bundle
from voxport.model.synthetic.checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def family_bundles(
    trained_bundles: dict[str, Path], exports: ExportCache, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Folders by family: the embedded models, and a Qwen3-TTS with speakers."""
    made = tmp_path_factory.mktemp("qwen")
    write_checkpoint(made / "checkpoint", "micro-custom-voice", key="qwen3_tts")
    options = ["--target", "onnx", "--checkpoint", str(made / "checkpoint"), "--quant", "w8"]
    qwen = exports.export(made / "bundle", *options, checks=few_calls)
    found = {Bundle(folder).job.family: folder for folder in trained_bundles.values()}
    return {**found, "qwen3_tts": qwen}


def voice(first: int, end: int, length: int | None = None) -> bytes:
    """A file of safetensors, with any offsets and length of its header."""
    entry = {"dtype": "F32", "shape": [1, 1], "data_offsets": [first, end]}
    header = json.dumps({"embedding": entry}).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header


STATE = "components/audio_encoder/signature/states/2"
# What is changed in the job of a bundle, and what the error says. Bytes: what each voice is
HOSTILE: list[tuple[str, str, int | bytes, str]] = [
    ("voxtral_realtime", "constants/hop_length", 0, "hop_length is 0, expected 32 to 1024"),
    ("voxtral_realtime", "constants/sample_rate", 0, "sample_rate is 0, expected 1000 to 384000"),
    ("voxtral_realtime", "constants/n_mels", -1, "n_mels is -1, expected 1 to 1024"),
    ("voxtral_realtime", "constants/left_pad_tokens", 10**12, "left_pad_tokens is 1000000000000, expected 0"),
    ("voxtral_realtime", "constants/delays/0", 10**12, "delays is 1000000000000, expected 0 to 256"),
    ("voxtral_realtime", "components/audio_encoder/signature/dims/T/1", 0, "is 0, expected 1 to 16777216"),
    ("voxtral_realtime", f"{STATE}/cache/window", 10**9, "window is 1000000000, expected 2 to"),
    ("voxtral_realtime", f"{STATE}/cache/rows_per_position", 0, "rows_per_position is 0, expected 1 to"),
    ("voxtral_realtime", f"{STATE}/shape/2", -1, "of encoder_k_cache_0"),
    ("voxtral_realtime", f"{STATE}/shape/2", 10**12, "of encoder_k_cache_0"),
    ("voxtral_tts", "constants/dim", 0, "dim is 0, expected 1 to 65536"),
    ("voxtral_tts", "constants/semantic_codes", 2**40, "semantic_codes is 1099511627776, expected 1 to"),
    ("qwen3_tts", "constants/n_codebooks", 0, "n_codebooks is 0, expected 2 to 256"),
    ("voxtral_tts", "voices", b"short", "voices/"),
    ("voxtral_tts", "voices", voice(0, 4, length=2**63 - 1), "voices/"),
    ("voxtral_tts", "voices", voice(0, 2**40), "voices/"),
    ("voxtral_tts", "voices", voice(-4096, 0), "voices/"),
]


@pytest.fixture(params=HOSTILE, ids=[f"{path}-{number}" for number, (_, path, *_) in enumerate(HOSTILE)])
def hostile(
    request: pytest.FixtureRequest, family_bundles: dict[str, Path], tmp_path: Path
) -> tuple[Path, str]:
    """A bundle with one change, and what its error says."""
    family, path, value, text = request.param
    folder = shutil.copytree(family_bundles[family], tmp_path / "hostile")
    manifest = json.loads((folder / "manifest.json").read_text())
    if isinstance(value, bytes):
        for name in manifest["voices"].values():
            (folder / name).write_bytes(value)
            manifest["files"][name] = {"size": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    else:
        *keys, last = [int(key) if key.isdigit() else key for key in path.split("/")]
        place: Any = manifest["job"]
        for key in keys:
            named = key != "components" and place is manifest["job"]["components"]
            place = next(each for each in place if each["name"] == key) if named else place[key]
        place[last] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder, text
