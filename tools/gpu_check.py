"""Exports, verifies and times ONNX bundles on CUDA in one run, and writes one JSON.

    python -m tools.gpu_check [--wheels ARCHIVE ...] --folder FOLDER -o OUT.json

Needs no network. Unpacks archives of `tools.gpu.wheels` into FOLDER/site, before the installed packages.
Then it checks the embedded model with each recipe, and a model of the published width with few layers.
Beside that, it exports the model of the published size. It measures times at the end, when nothing else runs.
A phase that fails is recorded, and the next one runs, except that CUDA must load. A bundle or a checkpoint
that FOLDER already has is not made again. Bundles made elsewhere may be placed there, as FOLDER/tiny-RECIPE.

`--device cpu` runs the same phases without a GPU.
"""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

# no import of voxport: its requirements may be among the packages that are unpacked first
Json = dict[str, Any]  # Any: JSON content
ROOT = Path(__file__).resolve().parents[1]
SECONDS = 470  # limit of the whole run
RECIPES = ("none", "w4", "w8")
WIDE_RECIPE = "w4g128"
log = logging.getLogger(__name__)


@dataclass
class Check:
    """Runs phases as processes, and writes their results after each one."""

    folder: Path
    out: Path
    device: str
    seconds: int
    started: float = field(default_factory=time.monotonic)
    phases: list[Json] = field(default_factory=list)
    plan: list[Json] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def left(self) -> float:
        """Seconds until the end of the run."""
        return self.seconds - (time.monotonic() - self.started)

    def run(self, name: str, *command: str, limit: int = 120) -> bool:
        """Whether the process ended with 0. `limit` is in seconds, at most those that are left."""
        if self.left < 1:
            return self.record({"phase": name, "error": "no time left"}, False)
        modules = [str(self.folder / "site"), str(ROOT), str(ROOT / "src")]
        libraries = map(str, _cuda_folders())
        environment = os.environ | _before("PYTHONPATH", modules) | _before("LD_LIBRARY_PATH", libraries)
        begun, seconds = time.monotonic(), min(self.left, limit)
        code, output, errors = _run([sys.executable, *command], self.folder, environment, seconds)
        row = {"phase": name, "seconds": round(time.monotonic() - begun, 1), "exit": code}
        row |= {"result": _parsed(output), "messages": errors.splitlines()[-30:]}
        return self.record(row, code == 0)

    def record(self, row: Json, passed: bool) -> bool:
        log.info("%s: %s", row["phase"], "passed" if passed else row)
        with self._lock:
            self.phases.append(row)
            total = round(time.monotonic() - self.started, 1)
            content = {"device": self.device, "seconds": total, "plan": self.plan, "phases": self.phases}
            self.out.write_text(json.dumps(content, indent=1) + "\n")
        return passed

    def voxport(self, name: str, *command: str, limit: int = 120) -> bool:
        return self.run(name, "-m", "voxport", *command, limit=limit)


def _cuda_folders() -> list[Path]:
    """Folders with libraries of CUDA among the installed packages, which need not be in FOLDER/site."""
    return [folder for place in sys.path for folder in sorted(Path(place).glob("nvidia/*/lib"))]


def _before(variable: str, paths: Iterable[str]) -> dict[str, str]:
    """An environment variable with these paths before the ones it has."""
    return {variable: os.pathsep.join((*paths, *filter(None, [os.environ.get(variable)])))}


def _run(command: list[str], folder: Path, environment: Json, seconds: float) -> tuple[int | None, str, str]:
    """Exit code, or None after `seconds`, and the output until then. Processes that it started end too."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
            return process.returncode, output, errors
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            return None, output, f"{errors}\nstopped after {seconds:.0f} s"


def _parsed(output: str) -> Any:
    """The JSON that a process printed, or the last line of JSON, else its last lines."""
    lines = output.splitlines()
    for text in (output, *reversed(lines)):
        try:
            if isinstance(found := json.loads(text), dict):
                return found
        except ValueError:
            pass
    return lines[-10:]


def unpack(check: Check, archives: Iterable[Path]) -> None:
    for archive in archives:
        with tarfile.open(archive) as tar:
            tar.extractall(check.folder / "site", filter="data")


def measure_device(device: str) -> None:
    """Prints versions, and the bandwidth of the device."""
    import torch

    from voxport.runtime.engines.onnx import load_cuda, ort

    found: Json = {"onnxruntime": ort.__version__, "torch": torch.__version__, "python": sys.version}
    found |= {"providers": ort.get_available_providers(), "cuda": getattr(ort, "cuda_version", None)}
    if device == "cuda":
        found["bandwidth_gb_s"] = load_cuda().bandwidth() / 1e9
        query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    print(json.dumps(found))


def make_checkpoint(folder: str, layers: str) -> None:
    """Writes a checkpoint of the published width with random weights and `layers` layers in the backbone."""
    from dataclasses import replace

    from voxport.model.synthetic.checkpoint import write_checkpoint
    from voxport.model.voxtral_tts import sizes

    sizes.SIZES["wide"] = replace(sizes.SIZES["full"], backbone={"n_layers": int(layers)})
    write_checkpoint(Path(folder), "wide")


def _function(call: str) -> tuple[str, str]:
    return "-c", f"from tools import gpu_check; gpu_check.{call}"


def export(check: Check, name: str, recipe: str, *options: str) -> bool:
    if (check.folder / name / "manifest.json").exists():
        return True
    arguments = ("--target", "onnx", "--compute-precision", "float16", "--quant", recipe, "--no-verify")
    return check.voxport(f"export {name}", "export", *arguments, *options, "--out", name, limit=300)


def check_tiny(check: Check, recipe: str) -> None:
    """Everything but times, for the embedded model."""
    name, device = f"tiny-{recipe}", ("--device", check.device)
    if not export(check, name, recipe):
        return
    check.voxport(f"verify {name}", "verify", name, *device, "--steps", "200", "--json")


def export_wide(check: Check, layers: str) -> bool:
    """A bundle of the published width. Needs no GPU."""
    checkpoint = f"checkpoint-{layers}"
    written = (check.folder / checkpoint).exists() or check.run(
        f"write {checkpoint}", *_function(f"make_checkpoint({checkpoint!r}, {layers!r})"), limit=200
    )
    return written and export(check, f"wide-{layers}", WIDE_RECIPE, "--checkpoint", checkpoint)


def check_few_layers(check: Check, layers: str) -> None:
    """A model of the published width with few layers, because eager is slow."""
    name = f"wide-{layers}"
    if export_wide(check, layers):
        options = ("--checkpoint", f"checkpoint-{layers}", "--device", check.device, "--json")
        check.voxport(f"verify {name}", "verify", name, *options)


def time_bundle(check: Check, name: str) -> None:
    """Also writes FOLDER/NAME.json, for `tools.figures speed`."""
    options = ("--device", check.device, "--frames", "100", "--streams", "1,2,4", "--json")
    if check.voxport(f"bench {name}", "bench", name, *options):
        (check.folder / f"{name}.json").write_text(json.dumps(check.phases[-1].get("result")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheels", type=Path, nargs="*", default=[], help="archives to unpack first")
    parser.add_argument("--folder", type=Path, required=True, help="of packages, checkpoints and bundles")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default: cuda)")
    parser.add_argument("--layers", default="26", help="of the model that is timed at the end (default: 26)")
    parser.add_argument("--few-layers", default="2", help="of the wide model that is verified (default: 2)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"limit of the run (default: {SECONDS})")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    check = Check(arguments.folder.resolve(), arguments.out.resolve(), arguments.device, arguments.seconds)
    unpack(check, arguments.wheels)
    if not check.run("device", *_function(f"measure_device({arguments.device!r})")):
        return 1  # nothing else can run
    with ThreadPoolExecutor(1) as beside:
        beside.submit(export_wide, check, arguments.layers)
        check_tiny(check, RECIPES[0])
        check_few_layers(check, arguments.few_layers)
        for recipe in RECIPES[1:]:
            check_tiny(check, recipe)
    wide = (f"wide-{layers}" for layers in (arguments.layers, arguments.few_layers))
    for name in (*wide, *(f"tiny-{recipe}" for recipe in RECIPES)):
        if (check.folder / name / "manifest.json").exists():
            time_bundle(check, name)
    return 0 if all(phase.get("exit") == 0 for phase in check.phases) else 1


if __name__ == "__main__":
    sys.exit(main())
