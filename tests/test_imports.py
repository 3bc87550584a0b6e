"""What an import of voxport brings: one name, its types, and few modules."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.paths import ROOT
from test_structure import LAYERS, source_files

FOREIGN = ("bundle", "cli", "export", "model", "quantize", "runtime")  # also the names of the folders
SPEAKS = """
import sys
import voxport
pieces = voxport.open(sys.argv[1]).speak("Hello there.", max_frames=2)
print(sum(map(len, pieces)), voxport.__file__, *sys.modules)
"""
COUNTS = """
import sys
from voxport.__main__ import main
assert main(sys.argv[1:]) == 0
own = [name for name, module in sys.modules.items() if name.split(".")[0] == "voxport"]
print("MODULES", *(name for name in own if getattr(sys.modules[name], "__file__", None)))
"""
MAX_DRY_RUN, MAX_SAY = 70, 40  # modules of the project
DATA = (  # one of each kind of file that is no module
    "py.typed",
    "bundle/FORMAT.md",
    "model/qwen3_tts/sizes.json",
    "runtime/serve/page/index.html",
    "export/evaluation/held_out/held-out.trans.txt",
    "export/evaluation/held_out/held-out-000.opus",
    "runtime/audio/silero_vad.safetensors",
    "runtime/audio/silero_vad.license",
)


def run(*command: object, path: Path, folder: Path) -> str:
    """What a process of Python prints that finds voxport in `path`."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | {"PYTHONPATH": str(path)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in source_files("*"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for link in filter(Path.is_symlink, (ROOT / "src" / "voxport").iterdir()):
        shutil.copy2(link, tree / "src" / "voxport", follow_symlinks=False)
    for kind in ("wheel", "sdist"):
        code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
        subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, check=True)
    return out


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_wheel_has_one_package_with_all_modules_and_data(installed: Path, distributions: Path) -> None:
    version = next(distributions.glob("*.whl")).name.split("-")[1]
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


def test_a_tree_without_its_links_says_what_to_do(tmp_path: Path) -> None:
    """As unpacked from a .zip: a link is a file with the path that it leads to."""
    (tmp_path / "voxport").mkdir()
    shutil.copy(ROOT / "src" / "voxport" / "__init__.py", tmp_path / "voxport")
    (tmp_path / "voxport" / "bundle").write_text("../../bundle")
    code = "try: import voxport\nexcept ImportError as error: print(error)"
    found = run("-c", code, path=tmp_path, folder=tmp_path)
    assert "is not a link to a folder" in found and "unpack the .tar.gz archive" in found


@pytest.mark.slow
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


def modules_of(*arguments: object) -> list[str]:
    """The modules of voxport that a command imports in a new process."""
    shown = run("-c", COUNTS, *arguments, path=ROOT / "src", folder=ROOT)
    return shown.partition("MODULES")[2].split()


def test_a_dry_run_of_an_export_imports_few_modules(checkpoint: Path) -> None:
    found = modules_of("export", "--target", "onnx", "--quant", "w8", "--checkpoint", checkpoint, "--dry-run")
    assert len(found) <= MAX_DRY_RUN, "\n".join(found)


@pytest.mark.parametrize("wrong", [["--quant", "w5"], ["--quant", "w8g128"], ["--quant-rule", "*=w5"]])
def test_names_are_checked_before_torch_is_imported(wrong: list[str]) -> None:
    arguments = ["export", "--target", "executorch", *wrong]
    code = f"import sys\nfrom voxport.__main__ import main\nprint(main({arguments}), 'torch' in sys.modules)"
    assert run("-c", code, path=ROOT / "src", folder=ROOT).split() == ["2", "False"]


@pytest.mark.slow
def test_say_imports_few_modules(bundles: Path, tmp_path: Path) -> None:
    bundle, out = bundles / "onnx", tmp_path / "out.wav"
    found = modules_of("say", "Hello.", "--bundle", bundle, "--max-frames", "2", "-o", out)
    assert len(found) <= MAX_SAY, "\n".join(found)
