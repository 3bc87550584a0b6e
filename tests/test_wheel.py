"""The wheel: what it has, and that it speaks, listens and serves in an environment with nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.paths import GOLDEN, ROOT
from support.serve.server_process import serving
from test_imports import run
from test_structure import LAYERS, source_files

from voxport.model.embedded import trained_checkpoint
from voxport.model.families import DEFAULT
from voxport.model.inspection import inspect_checkpoint

FOREIGN = ("bundle", "cli", "export", "model", "quantize", "runtime")  # also the names of the folders
SPEAKS = """
import sys
import voxport
pieces = voxport.open(sys.argv[1]).speak("Hello there.", max_frames=2)
print(sum(map(len, pieces)), voxport.__file__, *sys.modules)
"""
OPENS = """
import voxport
voices = voxport.open_embedded(voxport.TextToSpeech).voices()
print(*voices, voxport.open_embedded(voxport.SpeechToText).delays_ms)
"""
DATA = (  # one of each kind of file that is no module
    "py.typed",
    "bundle/FORMAT.md",
    "bundles/voxtral-tts-tiny/codec.onnx.data",
    "bundles/voxtral-tts-tiny/voices/clear_male.safetensors",
    "bundles/voxtral-realtime-tiny/tekken.json",
    "model/qwen3_tts/sizes.json",
    "runtime/serve/page/index.html",
    "web/index.html",
    "web/package.json",
    "export/evaluation/held_out/held-out.trans.txt",
    "export/evaluation/held_out/held-out-000.opus",
    "export/calibration/recordings/recordings-000.opus",
    "runtime/audio/silero_vad.safetensors",
    "runtime/audio/silero_vad.license",
)
EMBEDDED = trained_checkpoint(DEFAULT)
MAX_BYTES = 30e6  # of the wheel; the package index takes 100 MB
TEXT = "Seven green bottles are standing on the wall."
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def no_path() -> Iterator[None]:
    """Programs find no voxport but the installed one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


def succeed(*command: object, folder: Path | None = None) -> str:
    """What a program prints."""
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git tracks."""
    tree = tmp_path_factory.mktemp("tree")
    for name in source_files("*"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for link in filter(Path.is_symlink, (ROOT / "src" / "voxport").iterdir()):
        shutil.copy2(link, tree / "src" / "voxport", follow_symlinks=False)
    return tree


@pytest.fixture(scope="module")
def distributions(
    clone: Path, trained_bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    tree, out = tmp_path_factory.mktemp("with_bundles"), tmp_path_factory.mktemp("dist")
    shutil.copytree(clone, tree, symlinks=True, dirs_exist_ok=True)
    for bundle in trained_bundles.values():
        shutil.copytree(bundle, tree / "src" / "voxport" / "bundles" / bundle.name)
    succeed(sys.executable, "-m", "build", "--outdir", out, tree)
    return out


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    return next(distributions.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel and its extra [onnx]."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    succeed(folder / "bin" / "pip", "install", f"{wheel}[onnx]")
    return folder / "bin"


def test_a_wheel_has_one_package_with_all_modules_and_data(
    wheel: Path, installed: Path, distributions: Path
) -> None:
    version = wheel.name.split("-")[1]
    assert {path.name for path in installed.iterdir()} == {"voxport", f"voxport-{version}.dist-info"}
    names = {path.removeprefix("src/voxport/") for path in source_files("*.py", "*.md", "*.html", "*.js")}
    expected = {name for name in names if name.split("/")[0] in LAYERS} | {
        *DATA,
        "__init__.py",
        "__main__.py",
    }
    assert not {name for name in expected if not (installed / "voxport" / name).is_file()}
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as sources:
        found = {name.partition("/src/voxport/")[2] for name in sources.getnames()}
    assert not expected - found
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name, count in Counter(archive.namelist()).items() if count > 1]
    assert wheel.stat().st_size < MAX_BYTES
    succeed(sys.executable, "-m", "twine", "check", "--strict", *distributions.iterdir())


def test_it_speaks_and_listens_without_torch(programs: Path, tmp_path: Path) -> None:
    voxport = programs / "voxport"
    succeed(voxport, "say", TEXT, "-o", "speech.wav", folder=tmp_path)
    assert succeed(voxport, "transcribe", "speech.wav", folder=tmp_path).strip() == TEXT
    assert "clear_female" in succeed(voxport, "voice", "list")
    assert "torch        not installed" in succeed(voxport, "--version")
    done = subprocess.run([voxport, "serve"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "'voxport[serve]'" in done.stderr
    assert succeed(programs / "python", "-c", OPENS, folder=tmp_path).startswith("clear_female clear_male")


def test_checkpoints_and_bundles_are_inspected_without_torch(
    programs: Path, checkpoint: Path, tmp_path: Path
) -> None:
    def failing(code: int, *arguments: object) -> str:
        done = subprocess.run([voxport, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    voxport = programs / "voxport"
    for folder in (EMBEDDED, GOLDEN / "qwen3_tts" / "base"):
        found = json.loads(succeed(voxport, "inspect", folder, "--json"))
        expected: Mapping[str, object] = inspect_checkpoint(folder)
        same = ("family", "config", "tokenizer", "bytes", "dtypes")
        assert found["loadable"] is None and [found[key] == expected[key] for key in same]
    whole = succeed(voxport, "inspect", EMBEDDED)
    assert whole.startswith("whole; its tensors are not compared") and "7,728,110" in whole
    damaged = shutil.copytree(checkpoint, tmp_path / "damaged")
    os.truncate(damaged / "consolidated.safetensors", 1000)
    assert "NOT LOADABLE" in (text := failing(5, "inspect", damaged)) and "holds 1,000 of" in text
    (damaged / "consolidated.safetensors").write_bytes(b"x" * 1000)
    assert "not a safetensors file; fetch it again" in failing(5, "inspect", damaged)
    (damaged / "consolidated.safetensors").unlink()
    assert "consolidated.safetensors: missing; fetch it" in failing(5, "inspect", damaged)
    bundle = next(programs.parent.rglob("bundles")) / "voxtral-tts-tiny"
    assert "every hash is right" in failing(2, "verify", bundle)
    assert "targets     onnx, executorch, coreml, coreai" in succeed(voxport, "list")


def test_it_serves_both_models_and_leaves_nothing_behind(
    wheel: Path, programs: Path, clone: Path, tmp_path: Path
) -> None:
    """The last test of the environment."""
    succeed(programs / "pip", "install", f"{wheel}[onnx,serve]")
    with serving(tmp_path / "log", program=[programs / "voxport"]) as (_, client):
        request = {"model": "voxtral-tts-tiny", "input": TEXT, "response_format": "wav"}
        speech = client.post("/v1/audio/speech", json=request)
        answer = client.post(
            "/v1/audio/transcriptions",
            files={"file": ("speech.wav", speech.content)},
            data={"model": "voxtral-realtime-tiny"},
        )
    assert answer.json()["text"].strip() == TEXT
    succeed(programs / "pip", "uninstall", "--yes", "voxport")
    assert not [path for path in programs.parent.rglob("*") if "voxport" in path.name]
    succeed(programs / "pip", "install", "--no-deps", "--editable", clone)
    assert "voxport" in succeed(programs / "voxport", "--version")


@pytest.mark.parametrize("kind", ["--sdist", "--wheel"])
def test_a_clone_without_bundles_says_what_to_do(clone: Path, tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", tmp_path, clone]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 1 and not [*tmp_path.iterdir()]
    assert [line for line in done.stderr.splitlines() if "run `make wheel`" in line], done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("source", ["clone", "wheel"])
def test_a_script_speaks_beside_modules_with_the_names_of_our_folders(
    bundles: Path, installed: Path, tmp_path: Path, source: str
) -> None:
    for name in FOREIGN:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a foreign module is imported')\n")
    (tmp_path / "speaks.py").write_text(SPEAKS)
    path = ROOT / "src" if source == "clone" else installed
    samples, origin, *modules = run("speaks.py", bundles / "onnx", path=path, folder=tmp_path).split()
    assert int(samples) == 2 * 1920 and Path(origin).is_relative_to(path)
    assert not {*FOREIGN} & {*modules} and "voxport.runtime" in modules


def test_a_type_checker_sees_the_types_of_the_public_names(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "import voxport\ntask = voxport.open('bundle')\nassert isinstance(task, voxport.TextToSpeech)\n"
        "reveal_type(task.sample_rate)\ntask.speak(1)\n"
    )
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "user.py"]
    environment = os.environ | {"MYPYPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert re.search(r'4: note: Revealed type is "(builtins\.)?int"', done.stdout), done.stdout
    assert '5: error: Argument 1 to "speak"' in done.stdout
