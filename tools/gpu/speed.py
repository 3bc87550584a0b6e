"""Times all families on a GPU in one run of at most 8 minutes, and writes one JSON.

    python -m tools.gpu.speed --folder FOLDER -o OUT.json [--wheels ARCHIVE ...]

Makes bundles of the published sizes in float16 with random weights, all at the same time. Nothing is measured
beside that. Then it measures, each in a process with its own limit: `voxport bench`, which is today's path,
frames on the device in the forms of `tools.gpu.frames`, a server, and a recording. A phase that fails or
finds no time is recorded, and the next one runs. At the end, `codes` has the number of frames of each form
before the first code that differs from `bound`. Rounding may change codes.

The same command again goes on: it keeps bundles, and phases of OUT that passed. `--make` only makes bundles,
for which the models of 4B need minutes. `--device cpu --size tiny` runs the same phases without a GPU. OUT
has the plan with its limits.
"""

import argparse
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tools.gpu_check import SECONDS, Check, Json, unpack

# Limits in seconds. Making ends when the small models and a server still have theirs.
DEVICE_S, MAKE_S, SMALL_S, LARGE_S, SERVER_S = 20, 240, 30, 40, 30
RETRIES = 3  # calls that cannot be captured, one in each
RECIPE = "w4"  # groups of 32, which `fpa_intb_gemm` needs
STREAMS = ("--streams", "1,8")
SPOKEN = ("qwen3-tts", "voxtral-tts")


@dataclass(frozen=True)
class Model:
    """`seconds` of a phase, most of them for opening; options of the export, of the export at the published
    size, and of `bench`.
    """

    name: str
    size: str
    seconds: int
    options: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()
    suffix: str = ""  # of a size


MODELS = (
    Model("qwen3-tts", "0.6b", SMALL_S, bench=STREAMS, suffix="-custom-voice"),
    Model("qwen3-asr", "0.6b", SMALL_S),
    Model("voxtral-tts", "full", LARGE_S, bench=STREAMS),
    Model("voxtral-realtime", "full", LARGE_S, ("--streaming",), ("--cache-length", "2048")),
)
FIRST, LATER = ("captured 1", "bound 1"), ("captured 16", "captured 8", "captured+intb 1", "bound 16")
BFLOAT16 = "captured+bfloat16 1"  # of small models: its graphs are written again
AGAIN = ("device", "codes")  # phases of every run
Phase = tuple[str, int, tuple[str, ...]]  # its name, its limit, and the arguments of Python


def make(check: Check, model: Model, size: str, until: float) -> None:
    """Ends when the run has `until` seconds left."""
    checkpoint = f"checkpoint-{model.name}"
    if not (check.folder / checkpoint).exists():
        options: tuple[str, ...] = ("--model", model.name, "--size", size + model.suffix)
        check.voxport(f"write {checkpoint}", "synth", checkpoint, *options, limit=int(check.left - until))
    if not is_made(check, model.name):
        options = ("--target", "onnx", "--compute-precision", "float16", "--quant", RECIPE, "--no-verify")
        options += model.options + (model.published if size == model.size else ())
        command = ("export", "--checkpoint", checkpoint, *options, "--out", model.name)
        check.voxport(f"export {model.name}", *command, limit=int(check.left - until))


def is_made(check: Check, name: str) -> bool:
    return (check.folder / name / "manifest.json").exists()


def plan(models: tuple[Model, ...], device: str, frames: int) -> list[Phase]:
    """The measurements, the most useful ones first."""
    options = ("--device", device, "--frames", str(frames))

    def form(model: Model, variant: str) -> Phase:
        kind, batch = variant.split()
        command = ("-m", "tools.gpu.frames", model.name, kind, *options, "--batch", batch)
        return f"{model.name} {variant}", model.seconds, command

    def server(name: str) -> Phase:
        code = (
            "import av, json, pathlib; from tools.serve_figures import measure; "  # fails at once without av
        )
        code += f"print(json.dumps(measure(pathlib.Path({name!r}), {frames}, {device!r})))"
        return f"{name} server", SERVER_S, ("-c", code)

    rows: list[Phase] = []
    for model in models:
        command = ("-m", "voxport", "bench", model.name, *options, *model.bench, "--json")
        rows.append((f"{model.name} bench", model.seconds, command))
    rows += [form(model, variant) for variant in FIRST for model in models]
    code = f"from tools.gpu import speed; speed.time_recording('voxtral-realtime', {device!r})"
    rows += [server(SPOKEN[0]), ("voxtral-realtime recording", LARGE_S, ("-c", code))]
    rows += [form(model, variant) for variant in LATER for model in models]
    if device != "cpu":  # whose kernels do not take bfloat16
        rows += [form(model, BFLOAT16) for model in models if model.seconds == SMALL_S]
    return [*rows, server(SPOKEN[1])]


def time_recording(bundle: str, device: str, seconds: int = 20) -> None:
    """Prints the seconds for a recording of noise, and its length."""
    import time

    import numpy as np

    import voxport

    task = voxport.open(bundle, voxport.EngineOptions(device=device))
    assert isinstance(task, voxport.SpeechToText)
    samples = np.random.default_rng(0).normal(0, 0.1, seconds * task.sample_rate).astype(np.float32)
    for length in (len(samples) // 10, len(samples)):  # the first call opens the graphs
        begun = time.perf_counter()
        list(task.transcribe([samples[:length]]))
    print(json.dumps({"seconds": time.perf_counter() - begun, "recording_s": seconds}))


def run(check: Check, phase: Phase) -> None:
    """A phase of frames runs again without capturing the call that failed."""
    name, limit, command = phase
    without: list[str] = []
    if not is_made(check, model_of(name)):
        check.record({"phase": name, "error": "no bundle"}, False)
        return
    for _ in range(RETRIES):
        options = ("--without", ",".join(without)) if without else ()
        if check.run(name, *command, *options, limit=limit) or "captured" not in name:
            return
        result = check.phases[-1].get("result")
        call = result.get("call") if isinstance(result, dict) else None
        if call is None or call in without:
            return
        without.append(call)


def model_of(phase: str) -> str:
    return phase.split()[0]


def equal_frames(rows: list[Json]) -> dict[str, str]:
    """By phase: how many frames, before the first code that differs, have the codes of `bound`."""
    codes = {row["phase"]: row["result"].get("codes") for row in rows if isinstance(row.get("result"), dict)}
    found = {}
    for name, each in codes.items():
        if each and (expected := codes.get(f"{model_of(name)} bound 1")):
            equal = [*takewhile(lambda pair: pair[0] == pair[1], zip(each, expected, strict=False))]
            found[name] = f"{len(equal)} of {len(each)}"
    return found


def passed(out: Path) -> dict[str, Json]:
    """Phases of an earlier run without an error, by name."""
    rows = json.loads(out.read_text())["phases"] if out.exists() else []
    return {row["phase"]: row for row in rows if row.get("exit") == 0 and row["phase"] not in AGAIN}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheels", type=Path, nargs="*", default=[], help="archives to unpack first")
    parser.add_argument("--make", action="store_true", help="make the bundles only, which needs no GPU")
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
        if model_of(phase[0]) in names and arguments.only in phase[0]
    ]
    kept = passed(check.out)
    check.phases += kept.values()
    check.plan = [{"phase": name, "limit_s": limit} for name, limit, _ in phases]
    unpack(check, arguments.wheels)
    code = f"from tools import gpu_check; gpu_check.measure_device({arguments.device!r})"
    if not (arguments.make or check.run("device", "-c", code, limit=DEVICE_S)):
        return 1  # nothing else can run
    until = 0 if arguments.make else arguments.seconds - DEVICE_S - MAKE_S
    with ThreadPoolExecutor(len(models)) as makers:
        for model in models:
            makers.submit(make, check, model, arguments.size or model.size, until)
    for phase in () if arguments.make else phases:
        if phase[0] not in kept:
            run(check, phase)
    check.record({"phase": "codes", "exit": 0, "result": equal_frames(check.phases)}, True)
    return 0 if all(phase.get("exit") == 0 for phase in check.phases) else 1


if __name__ == "__main__":
    sys.exit(main())
