"""Runs seeded cases of hostile input: `python -m fuzz --cases 100 --seed 1`, from the folder `tests`.

Each failure is printed with its area, seed and number, which make the same case again.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.areas import AREAS
from fuzz.files import Sources
from fuzz.harness import Command, Outcome, fault_of, run
from voxport.__main__ import main as voxport
from voxport.export.__main__ import main as export
from voxport.model.synthetic.checkpoint import random_checkpoint

PRELOADED = (
    "onnxruntime",
    "executorch.runtime",
    "coremltools",
    "voxport.cli.commands.inspect",
    "voxport.cli.commands.export",
    "voxport.export.conversion.convert",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each area")
    parser.add_argument("--cases", type=int, default=10, help="cases of each area (default: 10)")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument(
        "--bundles", type=Path, help="folder of the undamaged bundles; made where they are missing"
    )
    parser.add_argument("--keep", type=Path, help="folder for the files of failed cases")
    parser.add_argument("-o", "--output", type=Path, help="JSON file with the counts and the failures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        os.environ["XDG_CACHE_HOME"] = f"{work}/cache"
        sources = _sources(arguments.bundles or Path(work), Path(work))
        _preload()
        result = _run_cases(arguments, sources, Path(work))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    cases, failures = sum(result["cases"].values()), len(result["failures"])
    print(f"{cases} cases, {failures} failures, seed {arguments.seed}")
    return 1 if failures else 0


SMALL = ("--quant", "w4", "--cache-length", "256", "--euler-steps", "2")
BUNDLES = {
    "speech": ("--target", "onnx", *SMALL),
    "executorch": ("--target", "executorch", *SMALL),
    "coreml": ("--target", "coreml", *SMALL),
    "recognition": ("--model", "voxtral-realtime", "--target", "onnx", "--quant", "w8", "--streaming"),
    "cloning": ("--model", "qwen3-tts", "--target", "onnx", "--quant", "w4", "--cache-length", "160"),
}


def _sources(folder: Path, work: Path) -> Sources:
    """Exports the undamaged bundles where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in BUNDLES.items():
        if not (folder / name).exists() and export([*options, "--no-verify", "--out", str(folder / name)]):
            sys.exit(f"fuzz: the export of {name} failed")
    checkpoints = tuple(
        random_checkpoint(model) for model in ("voxtral_tts", "voxtral_realtime", "qwen3_tts")
    )
    converted = _converted(checkpoints, work)
    prefixes = work / "prefixes"
    os.environ["XDG_CACHE_HOME"] = str(prefixes)
    command = Command(("say", "Hi.", "--bundle", str(folder / "speech"), "--max-frames", "1", "-o", "hi.wav"))
    if run(voxport, command, work).code:
        sys.exit("fuzz: the undamaged bundle does not speak")
    os.environ["XDG_CACHE_HOME"] = f"{work}/cache"
    return Sources(
        folder / "speech",
        folder / "recognition",
        folder / "executorch",
        folder / "coreml",
        folder / "cloning",
        checkpoints,
        converted,
        prefixes,
    )


CONVERT = """
import json, sys
from voxport.__main__ import main
sys.exit(max(main(argv) for argv in json.loads(sys.argv[1])))
"""


def _converted(checkpoints: tuple[Path, ...], work: Path) -> tuple[Path, ...]:
    """Folders for mlx-audio: of floats and of integers.

    Another process makes them all: torch's threads do not survive a fork.
    """
    made = {
        work / "converted" / f"{path.name}-{quant}": ["convert", str(path), "--to", "mlx", "--quant", quant]
        for path in checkpoints
        for quant in ("none", "w4")
    }
    commands = json.dumps([[*command, str(out)] for out, command in made.items()])
    subprocess.run([sys.executable, "-c", CONVERT, commands], check=True, capture_output=True)
    return tuple(made)


def _preload() -> None:
    """Imports once what every child would import. No engine is opened: threads do not survive a fork."""
    for name in PRELOADED:
        __import__(name)


def _run_cases(arguments: argparse.Namespace, sources: Sources, work: Path) -> dict[str, Any]:
    counts, codes, failures = Counter[str](), Counter[str](), []
    started = time.monotonic()
    for index in range(arguments.first, arguments.first + arguments.cases):
        for area in arguments.areas:
            if arguments.minutes and time.monotonic() - started > 60 * arguments.minutes:
                break
            folder = work / "case"
            case = _run_case(area, arguments.seed, index, folder, sources)
            counts[area] += 1
            codes[f"{area} {case.outcome.code}"] += 1
            if case.fault:
                print(case.failure_text(), flush=True)
                failures.append(case.failure())
                if arguments.keep:
                    shutil.copytree(
                        folder, arguments.keep / f"{area}-{arguments.seed}-{index}", dirs_exist_ok=True
                    )
            shutil.rmtree(folder)
    seconds = round(time.monotonic() - started)
    return {
        "seed": arguments.seed,
        "seconds": seconds,
        "cases": counts,
        "exit_codes": codes,
        "failures": failures,
    }


@dataclass(frozen=True)
class Case:
    """One case that ran; `fault` is None if it passed."""

    area: str
    seed: int
    index: int
    command: Command
    outcome: Outcome
    fault: str | None

    def failure(self) -> dict[str, object]:
        """The entry in the report."""
        stderr = self.outcome.stderr[-2000:]
        return {"area": self.area, "case": self.index, "fault": self.fault, "stderr": stderr}

    def failure_text(self) -> str:
        stderr = self.outcome.stderr[-600:].replace("\n", "\n  ")
        command = " ".join(part[:60] for part in self.command.argv)
        return f"{self.area} seed {self.seed} case {self.index}: {self.fault}\n  {command!r}\n  {stderr}"


def _run_case(area: str, seed: int, index: int, folder: Path, sources: Sources) -> Case:
    folder.mkdir()
    command = AREAS[area](random.Random(f"{area} {seed} {index}"), folder, sources)
    outcome = run(voxport, command, folder)
    return Case(area, seed, index, command, outcome, fault_of(outcome, command, folder))


if __name__ == "__main__":
    sys.exit(main())
