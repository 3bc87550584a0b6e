"""The runner of `examples/cpp`, built here, on ONNX Runtime's library of the Python package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from support.paths import ROOT
from support.programs import need

from voxport.__main__ import main
from voxport.bundle.manifest import Bundle
from voxport.runtime.vectors import read_vectors

EXAMPLE = ROOT / "examples" / "cpp"
MOST_LINES = 1100
FAMILIES = ("voxtral_tts", "qwen3_tts", "voxtral_realtime")
TEXT = "Seven green bottles."
LINES = "Seven green\nbottles. Two\n\nred ones"  # three sentences


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cmake = need("cmake")
    folder = tmp_path_factory.mktemp("cpp")
    library, build = folder / "onnxruntime", folder / "build"
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run(
        ["sh", str(Path(__file__).with_name("fetch_onnxruntime.sh")), str(library)],
        check=True,
        env=environment,
    )
    subprocess.run([cmake, "-S", EXAMPLE, "-B", build, f"-DONNXRUNTIME_ROOT={library}"], check=True)
    subprocess.run([cmake, "--build", build, "-j2"], check=True)
    return build / "voxport_runner"


def run(*words: object, seconds: int = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=seconds)


def test_the_example_is_short() -> None:
    files = (path for path in EXAMPLE.iterdir() if path.suffix != ".md")
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES


@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_the_vectors(
    runner: Path, family_bundles: dict[str, Path], family: str, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    assert run(runner, "vectors", family_bundles[family], out).returncode == 0
    vectors = read_vectors(Bundle(family_bundles[family]))
    assert json.loads(out.read_text()).keys() >= {each.name for each in vectors.values}
    assert main(["vectors", str(family_bundles[family]), "--check", str(out)]) == 0


@pytest.mark.parametrize("family", FAMILIES[:2])
def test_it_speaks_as_voxport_byte_for_byte(
    runner: Path, family_bundles: dict[str, Path], family: str, tmp_path: Path
) -> None:
    bundle, found, expected = family_bundles[family], tmp_path / "found.wav", tmp_path / "expected.wav"
    assert main(["say", LINES, "--bundle", str(bundle), "--seed", "3", "-q", "-o", str(expected)]) == 0
    result = run(runner, "say", bundle, LINES, found, "--seed", 3)
    assert result.returncode == 0, result.stderr
    assert found.read_bytes() == expected.read_bytes()


def test_it_hears_what_voxport_hears(
    runner: Path, family_bundles: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoken, recording = tmp_path / "spoken.wav", tmp_path / "recording.wav"
    bundle = str(family_bundles["voxtral_tts"])
    assert main(["say", TEXT, "--bundle", bundle, "--seed", "0", "-q", "-o", str(spoken)]) == 0
    samples, rate = soundfile.read(spoken)
    soundfile.write(recording, soxr.resample(samples, rate, 16_000), 16_000, subtype="PCM_16")
    capsys.readouterr()
    listener = family_bundles["voxtral_realtime"]
    assert main(["transcribe", str(recording), "--bundle", str(listener)]) == 0
    assert run(runner, "transcribe", listener, recording).stdout == capsys.readouterr().out


def test_what_it_cannot_run_is_one_line(
    runner: Path, family_bundles: dict[str, Path], tmp_path: Path
) -> None:
    bundle, out = family_bundles["voxtral_tts"], tmp_path / "out.wav"
    broken = shutil.copytree(bundle, tmp_path / "broken")
    data = broken / "backbone.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    other = shutil.copytree(bundle, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["job"]["target"] = "coreml"
    (other / "manifest.json").write_text(json.dumps(manifest))
    np.save(tmp_path / "sound.npy", np.zeros(3))
    for words, text in (
        (("say", tmp_path / "none", TEXT, out), "manifest.json"),
        (("say", broken, TEXT, out), "backbone.onnx.data"),
        (("say", other, TEXT, out), "coreml"),
        (("say", bundle, TEXT, out, "--voice", "nobody"), "nobody"),
        (("transcribe", family_bundles["voxtral_realtime"], tmp_path / "sound.npy"), "sound.npy"),
        (("transcribe", bundle, tmp_path / "sound.npy"), "transcribe takes a bundle of voxtral_realtime"),
        (("sing", bundle), "usage"),
    ):
        result = run(runner, *words)
        assert result.returncode != 0 and text in result.stderr and len(result.stderr.splitlines()) == 1
        assert not out.exists()


def test_a_number_beyond_its_limits_is_one_line(
    runner: Path, hostile: tuple[Path, str], tmp_path: Path
) -> None:
    bundle, text = hostile
    result = run(runner, "vectors", bundle, tmp_path / "out.json", seconds=60)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert text in result.stderr


def test_deep_lists_in_a_manifest_are_one_line(
    runner: Path, family_bundles: dict[str, Path], tmp_path: Path
) -> None:
    bundle = shutil.copytree(family_bundles["voxtral_tts"], tmp_path / "deep")
    path, deep = bundle / "manifest.json", "[" * 200_000 + "]" * 200_000
    manifest = json.loads(path.read_text())
    manifest["job"]["components"][0]["file"] = manifest["job"]["constants"]["dim"] = "DEEP"
    path.write_text(json.dumps(manifest).replace('"DEEP"', deep))
    result = run(runner, "say", bundle, TEXT, tmp_path / "out.wav")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert "must be number, but is array" in result.stderr
