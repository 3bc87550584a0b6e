"""Bundles for the runners of `examples`, one of each family, with `vectors.json`, and hostile ones. The page
with these bundles, in a browser that hears speech.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from support.export.cache import ExportCache
from support.export.short_verification import few_calls
from support.programs import need
from support.runners import PAGE_FAMILIES, TEXT
from support.serve.browser import chromium
from support.serve.static_folder import served

from voxport.__main__ import main
from voxport.bundle.manifest import Bundle
from voxport.model.synthetic.checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def family_bundles(
    trained_bundles: dict[str, Path], exports: ExportCache, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Folders by family: the embedded models, a Qwen3-TTS with speakers, and a Qwen3-ASR."""
    found = {Bundle(folder).job.family: folder for folder in trained_bundles.values()}
    for family, size in (("qwen3_tts", "micro-custom-voice"), ("qwen3_asr", "micro")):
        made = tmp_path_factory.mktemp(family)
        write_checkpoint(made / "checkpoint", size, key=family)
        options = ["--target", "onnx", "--checkpoint", str(made / "checkpoint"), "--quant", "w8"]
        found[family] = exports.export(made / family, *options, checks=few_calls)
    return found


@pytest.fixture(scope="session")
def folder(family_bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `voxport web` writes, with its packages, and the modules of these tests."""
    npm = need("npm")
    out = tmp_path_factory.mktemp("web") / "page"
    assert main(["web", *(str(family_bundles[family]) for family in PAGE_FAMILIES), str(out)]) == 0
    subprocess.run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=out, check=True)
    for path in Path(__file__).parent.glob("*.js"):
        shutil.copy(path, out)
    return out


@pytest.fixture(scope="session")
def url(folder: Path) -> Iterator[str]:
    with served(folder) as url:
        yield url


@pytest.fixture(scope="session")
def speech(family_bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The words, at the rate of a microphone."""
    made = tmp_path_factory.mktemp("speech") / "spoken.wav"
    bundle = str(family_bundles["voxtral_tts"])
    assert main(["say", TEXT, "--bundle", bundle, "--seed", "0", "-q", "-o", str(made)]) == 0
    samples, rate = soundfile.read(made)
    path = made.with_name("microphone.wav")
    soundfile.write(path, np.pad(soxr.resample(samples, rate, 48_000), (48_000, 96_000)), 48_000)
    return path


@pytest.fixture(scope="module")
def browser(speech: Path) -> Iterator[Any]:
    with chromium(speech, "--autoplay-policy=no-user-gesture-required") as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.set_default_timeout(120_000)  # milliseconds; WebAssembly on a busy machine
    yield page
    page.close()


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
