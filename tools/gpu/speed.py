"""Times all families on a GPU in one run of at most 8 minutes, and writes one JSON.

    python -m tools.gpu.speed --folder FOLDER -o OUT.json [--wheels WHEELS]

Makes bundles of the published sizes in float16 with random weights, four at a time. Then it measures, each in
a process with its own limit: `voxport bench`, which is today's path, frames on the device in each form of
`tools.gpu.frames` for 1 and 16 utterances, and the server. A phase that fails or finds no time is recorded,
and the next one runs. The same command again goes on: it keeps bundles, and phases of OUT that passed.

`--device cpu --size tiny` runs the same phases without a GPU. OUT has the plan with its limits.
"""

import argparse
import json
import logging
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from tools.gpu_check import SECONDS, Check, install
from voxport.bundle.json_types import Json

DEVICE_S, MAKE_S, BENCH_S, SERVER_S = 60, 240, 40, 60  # limits of phases
RETRIES = 3  # calls that cannot be captured, one in each
ALL = ("bound", "captured", "captured+intb", "intb", "bound+bfloat16")


@dataclass(frozen=True)
class Model:
    """`options` of the export. A phase with frames has `seconds`, most of them for opening."""

    name: str
    size: str
    seconds: int
    variants: tuple[str, ...]
    options: tuple[str, ...] = ()


MODELS = (
    Model("qwen3-tts", "0.6b", 25, ALL),
    Model("voxtral-tts", "full", 45, ALL[:3]),
    Model("voxtral-realtime", "full", 45, ALL[:3], ("--cache-length", "2048", "--streaming")),
    Model("qwen3-asr", "0.6b", 20, ALL),
)
Phase = tuple[str, int, tuple[str, ...]]  # its name, its limit, and the arguments of Python


def make(check: Check, model: Model, size: str) -> None:
    checkpoint = f"checkpoint-{model.name}"
    if not (check.folder / checkpoint).exists():
        options: tuple[str, ...] = ("--model", model.name, "--size", size)
        check.voxport(f"write {checkpoint}", "synth", checkpoint, *options, limit=MAKE_S)
    if not (check.folder / model.name / "manifest.json").exists():
        options = ("--target", "onnx", "--compute-precision", "float16", "--quant", "w4g128", "--no-verify")
        command = ("export", "--checkpoint", checkpoint, *options, *model.options, "--out", model.name)
        check.voxport(f"export {model.name}", *command, limit=MAKE_S)


def plan(models: tuple[Model, ...], device: str, frames: int) -> list[Phase]:
    """The measurements, the most useful ones first."""
    rows: list[Phase] = []
    options = ("--device", device, "--frames", str(frames))
    for model in models:
        batches: tuple[str, ...] = () if model.name == "qwen3-asr" else ("--streams", "1,8")
        bench = ("-m", "voxport", "bench", model.name, *options, *batches, "--json")
        rows.append((f"{model.name} bench", BENCH_S, bench))
    for place in range(len(ALL)):
        for model in models:
            for variant in model.variants[place : place + 1]:
                frames_of = ("-m", "tools.gpu.frames", model.name, variant, *options, "--batch", "1,16")
                rows.append((f"{model.name} {variant}", model.seconds, frames_of))
    imports = "import json, pathlib; from tools.serve_figures import measure"
    for name in ("qwen3-tts", "voxtral-tts"):
        code = f"{imports}; print(json.dumps(measure(pathlib.Path({name!r}), {frames})))"
        rows.append((f"{name} server", SERVER_S, ("-c", code)))
    return rows


def run(check: Check, phase: Phase) -> None:
    """A phase of frames runs again without capturing the call that failed."""
    name, limit, command = phase
    without: list[str] = []
    for _ in range(RETRIES):
        options = ("--without", ",".join(without)) if without else ()
        if not check.run(name, *command, *options, limit=limit):
            return
        result = check.phases[-1]["result"]
        failed = [row.get("call") for row in result.get("batches", ())] if isinstance(result, dict) else []
        if "captured" not in name or not any(failed) or {*failed} <= {*without, None}:
            return
        without += [call for call in failed if call and call not in without]


def measure(check: Check, phases: list[Phase], making: dict[str, Future[None]]) -> None:
    """Small models are measured while large ones are still being made, on other cores."""
    while phases:
        is_made = [making[model_of(phase)].done() for phase in phases]
        if any(is_made):
            run(check, phases.pop(is_made.index(True)))
        else:
            wait(making.values(), return_when=FIRST_COMPLETED)


def model_of(phase: Phase) -> str:
    return phase[0].split()[0]


def passed(out: Path) -> dict[str, Json]:
    """Phases of an earlier run without an error, by name."""
    rows = json.loads(out.read_text())["phases"] if out.exists() else []
    return {row["phase"]: row for row in rows if row.get("exit") == 0 and '"error"' not in json.dumps(row)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first (default: none)")
    parser.add_argument("--folder", type=Path, required=True, help="of packages, checkpoints and bundles")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default: cuda)")
    parser.add_argument("--size", help="of all models (default: the published sizes)")
    parser.add_argument("--models", help="names, with commas (default: all)")
    parser.add_argument("--only", default="", metavar="WORD", help="measurements whose name has it")
    parser.add_argument("--frames", type=int, default=60, help="(default: 60)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"limit of the run (default: {SECONDS})")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    check = Check(arguments.folder.resolve(), arguments.out.resolve(), arguments.device, arguments.seconds)
    names = (arguments.models or ",".join(model.name for model in MODELS)).split(",")
    models = tuple(model for model in MODELS if model.name in names)
    phases = [
        phase
        for phase in plan(models, arguments.device, arguments.frames)
        if model_of(phase) in names and arguments.only in phase[0]
    ]
    kept = passed(check.out)
    check.phases += [row for name, row in kept.items() if name != "device"]
    check.plan = [{"phase": name, "limit_s": limit} for name, limit, _ in phases]
    if arguments.wheels:
        install(check, arguments.wheels.resolve())
    code = f"from tools import gpu_check; gpu_check.measure_device({arguments.device!r})"
    if not check.run("device", "-c", code, limit=DEVICE_S):
        return 1  # nothing else can run
    with ThreadPoolExecutor(len(models)) as makers:
        making = {
            model.name: makers.submit(make, check, model, arguments.size or model.size) for model in models
        }
        measure(check, [phase for phase in phases if phase[0] not in kept], making)
    return 0 if all(phase.get("exit") == 0 for phase in check.phases) else 1


if __name__ == "__main__":
    sys.exit(main())
