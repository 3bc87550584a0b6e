"""Runs seeded cases of hostile input: `python -m fuzz --cases 100 --seed 1`, from the folder `tests`.

Each case is a command in a forked child with limits of time and memory. It passes if the exit code is 0, 2,
3 or 5, with at most one line of error and no traceback. A failure is printed with its area and number, which
make the same case again; its files stay in --folder.
"""

import argparse
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO

from fuzz.areas import AREAS, CHECKPOINTS, SAY, Command, Sources
from voxport.__main__ import main as voxport

SECONDS, PEAK_BYTES = 60.0, 3 * 2**30
ADDRESS_SPACE = 24 * 2**30  # above it a child cannot harm the machine; torch alone maps 8 GB
GOOD_CODES = (0, 2, 3, 5)
UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]|\x1b|[\u202a-\u202e\u2066-\u2069]")
PRELOADED = ("voxport.runtime.engines.onnx", "executorch.runtime", "coremltools", "safetensors.torch")
SMALL = ("--quant", "w4", "--cache-length", "256", "--euler-steps", "2")
BUNDLE_FOLDER = Path(__file__).resolve().parents[2] / "artifacts" / "fuzz"
BUNDLES = {
    "speech": ("--target", "onnx", *SMALL),
    "executorch": ("--target", "executorch", *SMALL),
    "coreml": ("--target", "coreml", *SMALL),
    "coreai": ("--target", "coreai", "--compute-precision", "float32", *SMALL),
    "recognition": ("--model", "voxtral-realtime", "--target", "onnx", "--quant", "w8", "--streaming"),
    "cloning": ("--model", "qwen3-tts", "--target", "onnx", "--quant", "w4", "--cache-length", "160"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each area")
    parser.add_argument("--cases", type=int, default=10, help="cases of each area (default: 10)")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--bundles", type=Path, default=BUNDLE_FOLDER, help="made if missing")
    parser.add_argument("--folder", type=Path, help="a new folder for the cases (default: a temporary one)")
    arguments = parser.parse_args()
    work = arguments.folder.absolute() if arguments.folder else Path(tempfile.mkdtemp())
    work.mkdir(parents=True, exist_ok=True)
    sources = _sources(arguments.bundles.absolute(), work)
    for name in PRELOADED:  # what every child would import
        import_module(name)
    failed = 0
    for index in range(arguments.first, arguments.first + arguments.cases):
        for area in arguments.areas:
            folder = work / f"{area}-{arguments.seed}-{index}"
            folder.mkdir()
            command = AREAS[area](random.Random(f"{area} {arguments.seed} {index}"), folder, sources)
            fault = run(command, folder)
            if fault:
                failed += 1
                print(f"{folder.name}: {fault}\n  {' '.join(part[:60] for part in command.argv)!r}")
            else:
                shutil.rmtree(folder)
    print(f"{arguments.cases * len(arguments.areas)} cases, {failed} failures, seed {arguments.seed}")
    return 1 if failed else 0


def _sources(bundles: Path, work: Path) -> Sources:
    """Undamaged bundles, checkpoints and a cache. Children make them: threads do not survive a fork."""
    sources = {name: bundles / name for name in BUNDLES} | {"prefixes": work / "prefixes"}
    for name, options in BUNDLES.items():
        if not sources[name].exists():
            _prepare("export", *options, "--no-verify", "--out", str(sources[name]))
    for name in CHECKPOINTS:
        source, converted = work / name, work / f"{name} for MLX"
        _prepare("synth", str(source), "--model", name, "--size", "tiny")
        _prepare("convert", str(source), str(converted), "--to", "mlx", "--quant", "w4")
        sources |= {source.name: source, converted.name: converted}
    (work / "input").symlink_to(sources["speech"])
    os.environ["XDG_CACHE_HOME"] = str(sources["prefixes"])
    _prepare(*SAY, folder=work)
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    return sources


def _prepare(*argv: str, folder: Path | None = None) -> None:
    child = os.fork()
    if not child:
        os.chdir(folder or ".")
        os._exit(voxport(argv))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"fuzz: failed: voxport {' '.join(argv)}")


def run(command: Command, folder: Path) -> str | None:
    """What is wrong with the way that a command ends in a child; None if nothing is."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as stdin:
        stdin.write(command.stdin or b"")
        stdin.seek(0)
        started = time.monotonic()
        child = os.fork()
        if not child:
            _run_child(command, folder, (stdin, out, err))
        code, peak = _wait(child, started + SECONDS)
        err.seek(0)
        return _fault(code, peak, err.read(2**20).decode("utf-8", "replace"), command, folder)


def _run_child(command: Command, folder: Path, files: tuple[IO[bytes], ...]) -> None:
    code = 1
    try:
        os.setsid()
        for number, (name, file) in enumerate(zip(("stdin", "stdout", "stderr"), files, strict=True)):
            os.dup2(file.fileno(), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        if command.stdin is None:
            os.close(0)
            sys.stdin = None  # as Python starts with a closed stdin
        os.chdir(folder)
        os.environ.update(command.environment)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if command.file_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (command.file_bytes, command.file_bytes))
        code = voxport(command.argv)
        sys.stdout.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        with suppress(BaseException):
            traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)  # nothing of the parent's may run in the child


def _wait(child: int, deadline: float) -> tuple[int, int]:
    """The exit code, which is negative for a signal, and the peak of memory in bytes."""
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.004)


def _fault(code: int, peak: int, stderr: str, command: Command, folder: Path) -> str | None:
    lines = stderr.splitlines()
    errors = [line for line in lines if line.startswith("voxport: ")]
    written = folder / command.argv[command.argv.index("-o") + 1] if "-o" in command.argv[:-1] else None
    checks = {
        f"ended by signal {-code}, or after {SECONDS:.0f} s": code < 0,
        f"took {peak / 1e9:.1f} GB": peak > PEAK_BYTES,
        "traceback": "Traceback (most recent call last)" in stderr,
        f"exit code {code}": code not in GOOD_CODES,
        f"{len(errors)} lines of error": code > 0 and len(errors) != 1,
        "error is not the last line": bool(errors) and lines[-1] != errors[-1],
        "line of error is too long": any(len(line) > 2000 for line in errors),
        "control characters in stderr": bool(UNPRINTABLE.search(stderr)),
        "output of a failed command": bool(written and code and written.is_file()),
        "temporary file is left": any(folder.rglob("*.part")),
    }
    fault = next((what for what, holds in checks.items() if holds), None)
    return fault and f"{fault}\n  {stderr[-600:]}"


if __name__ == "__main__":
    sys.exit(main())
