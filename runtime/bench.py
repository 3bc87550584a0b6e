"""How fast a bundle speaks on this machine: per component, per frame, and against what its memory could deliver at best."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import UsageError, VoxportError
from runtime.engines import open_engine
from runtime.engines.base import Engine, EngineOptions, Stream
from runtime.engines.states import Arrays
from runtime.families import open_family, read_constants
from runtime.families.base import BenchSettings, RuntimeFamily
from runtime.families.voxtral_tts.voices import choose_voice

FRAME_MS = 80.0
PROBE_BYTES = 2**29  # far beyond any cache
WARM_UP = 3  # frames that are not counted
PROMPT_TOKENS = 20
SAMPLED = 10  # times that memory is looked at while steps are timed
PACKAGES = {"onnx": "onnxruntime", "executorch": "executorch", "coreml": "coremltools"}


class TimedStream:
    """Passes calls on to a stream and keeps how long each took, in seconds, by component."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self.signatures, self.batch, self.capacity = stream.signatures, stream.batch, stream.capacity
        self.load_rows, self.save_rows = stream.load_rows, stream.save_rows
        self.seconds: dict[str, array[float]] = {}
        self.total = 0.0  # of all calls

    def run(self, component: str, inputs: Arrays) -> Arrays:
        started = time.perf_counter()
        outputs = self._stream.run(component, inputs)
        took = time.perf_counter() - started
        self.seconds.setdefault(component, array("d")).append(took)
        self.total += took
        return outputs


@dataclass(frozen=True)
class Subject:
    """What is measured: `open` gives an engine, `weight_bytes` what a call of each component reads."""

    family: RuntimeFamily
    open: Callable[[], Engine]
    constants: Any
    cache_length: int
    weight_bytes: dict[str, int]
    settings: BenchSettings


def bench(
    folder: Path,
    options: EngineOptions,
    frames: int,
    prompt_tokens: int = PROMPT_TOKENS,
    at_once: tuple[int, ...] = (),
) -> dict[str, Any]:
    """`measure` of a bundle, and what it was measured on. Times in ms, sizes in bytes. `at_once` is what the family makes of it: numbers
    of callers that speak at once, or of steps that are encoded at once.

    Raises UsageError where prompt and frames do not fit the bundle's cache, or not so many can be timed at once.
    """
    bundle = Bundle(folder)
    manifest, family = bundle.manifest, open_family(bundle.job.family)
    constants = read_constants(bundle.job)
    family.check_at_once({entry.name: entry for entry in bundle.components}, at_once)
    voice = (
        choose_voice(bundle, None, constants.dim)
        if manifest.voices
        else np.zeros((0, constants.dim), np.float32)
    )
    weights = {entry.name: entry.weight_bytes for entry in bundle.components}
    settings = BenchSettings(voice, prompt_tokens, at_once)
    subject = Subject(
        family, lambda: open_engine(bundle, options), constants, bundle.job.cache_length, weights, settings
    )
    return {
        "bundle": {
            "name": bundle.job.source.name,
            "family": bundle.job.family,
            "target": bundle.job.target,
            "recipe": bundle.job.request.quant,
            "bytes": _size(bundle),
        },
        "machine": machine(options.threads, PACKAGES[bundle.job.target]),
        **measure(subject, options.threads, frames),
    }


def measure(subject: Subject, threads: int | None, frames: int) -> dict[str, Any]:
    """An exercise of `frames` steps of 80 ms, then what is timed at once."""
    family, settings = subject.family, subject.settings
    rows = family.rows_needed(subject.constants, settings, frames + WARM_UP)
    if rows > subject.cache_length:
        raise UsageError(
            f"bench: a voice, {settings.prompt_tokens} ids and {frames} frames need {rows} rows, the cache has {subject.cache_length}"
        )
    bandwidth = measure_bandwidth(threads)
    started = time.perf_counter()
    engine = subject.open()
    known = _first_calls(engine, subject)
    first = time.perf_counter() - started
    started = time.perf_counter()
    _first_calls(engine, subject)
    load = first - (time.perf_counter() - started)  # what the same calls take longer at first
    first_output = _first_output(engine, subject, known)
    timed = TimedStream(engine.stream())
    exercise = family.exercise(timed, subject.constants, settings, known)  # type: ignore[arg-type]  # all that it asks of a stream
    found = _time(timed, exercise.step, frames)
    components = {
        name: _component(seconds, subject.weight_bytes[name], name in found.once)
        for name, seconds in timed.seconds.items()
    }
    read = (
        sum(row["weight_bytes"] * row["calls"] for row in components.values() if row["per_frame"]) // frames
    )
    frame, floor = float(np.median(found.whole)) * 1e3, read / bandwidth * 1e3

    def time_together(
        stream: Stream, start: Callable[[Stream], Callable[[], None]]
    ) -> tuple[float, dict[str, float]]:
        timed = TimedStream(stream)
        whole = _time(timed, start(timed), frames).whole  # type: ignore[arg-type]
        return float(np.median(whole)), {
            name: float(np.median(seconds)) * 1e3 for name, seconds in timed.seconds.items()
        }

    return {
        "bandwidth_gb_s": bandwidth / 1e9,
        "load_s": load,
        "resident_bytes": found.resident[-1],
        "resident_over_time": found.resident,
        "components": components,
        "frame": {
            "frames": frames,
            "median_ms": frame,
            "p90_ms": float(np.percentile(found.whole, 90)) * 1e3,
            "outside_ms": float(np.median(found.outside)) * 1e3,
            "weight_bytes": read,
            "floor_ms": floor,
            "share_of_floor": floor / frame,
        },
        "rtf": frame / FRAME_MS,
        family.FIRST: first_output,
        "streams": family.together(engine, subject.constants, settings, known, time_together),
        "prompt_tokens": settings.prompt_tokens,
        "voice_rows": len(settings.voice),
    }


@dataclass(frozen=True)
class _Found:
    """Seconds of every step and of what of it was spent outside the graphs; resident bytes from first to last; components that were
    called before the first step only."""

    whole: array[float]
    outside: array[float]
    resident: list[int | None]
    once: set[str]


def _time(stream: TimedStream, step: Callable[[], None], steps: int) -> _Found:
    """`stream.seconds` are then those of the timed steps, and of the last call before them of what they do not call."""
    for _ in range(WARM_UP):
        step()
    before, stream.seconds = (
        stream.seconds,
        {},
    )  # arrays, 8 bytes a figure: an hour of steps shall not look like memory that grows
    whole, outside, resident = array("d"), array("d"), [resident_bytes()]
    for index in range(steps):
        inside, started = stream.total, time.perf_counter()
        step()
        whole.append(time.perf_counter() - started)
        outside.append(whole[-1] - (stream.total - inside))
        if (index + 1) * SAMPLED // steps > index * SAMPLED // steps:
            resident.append(resident_bytes())
    once = before.keys() - stream.seconds.keys()
    stream.seconds = {name: before[name][-1:] for name in before if name in once} | stream.seconds
    return _Found(whole, outside, resident, once)


def check_eager(checkpoint: Path | None) -> None:
    """Raises UsageError where eager cannot be timed, before the bundle is."""
    if find_spec("torch") is None or find_spec("export") is None:
        raise UsageError(
            "bench: --compare eager needs torch and voxport's exporter; install the extra [export]"
        )
    if checkpoint and not checkpoint.is_dir():
        raise UsageError(f"bench: --checkpoint {checkpoint}: no such folder")


def bench_eager(checkpoint: Path | None, beside: dict[str, Any], threads: int | None) -> dict[str, Any]:
    """The same measurement of the model in eager torch, by the exporter and in a process of its own, because a runtime has no model."""
    sizes = {
        "frames": beside["frame"]["frames"],
        "prompt-tokens": beside["prompt_tokens"],
        "voice-rows": beside["voice_rows"],
        "threads": threads,
    }
    options = [text for name, value in sizes.items() if value for text in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-m",
        "export",
        "bench",
        "--model",
        beside["bundle"]["family"],
        *(["--checkpoint", str(checkpoint)] if checkpoint else []),
        *options,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise VoxportError("bench: eager could not be timed; what went wrong stands above")
    return dict(json.loads(done.stdout))


def _first_calls(engine: Engine, subject: Subject) -> Any:
    """Calls every component, and returns what later exercises need not compute."""
    exercise = subject.family.exercise(engine.stream(), subject.constants, subject.settings, None)
    exercise.step()
    exercise.step()
    return exercise.known


def _first_output(engine: Engine, subject: Subject, known: Any, runs: int = 3) -> float:
    """Seconds until a new stream gives what a person waits for; median of `runs`."""
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        subject.family.exercise(engine.stream(), subject.constants, subject.settings, known).step()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def _component(seconds: array[float], weight_bytes: int, once: bool) -> dict[str, Any]:
    median = float(np.median(seconds))
    figures = {
        "calls": len(seconds),
        "median_ms": median * 1e3,
        "p90_ms": float(np.percentile(seconds, 90)) * 1e3,
        "weight_bytes": weight_bytes,
    }
    return figures | {"gb_s": weight_bytes / median / 1e9, "per_frame": not once}


def measure_bandwidth(threads: int | None = None, rounds: int = 5) -> float:
    """Bytes a second that all threads read together from memory: the best of `rounds` over half a gigabyte."""
    count = threads or os.cpu_count() or 1
    parts = np.array_split(np.ones(PROBE_BYTES // 4, np.float32), count)

    def read(part: np.ndarray) -> None:
        part.max()  # vectorised, and so bound by memory

    best = float("inf")
    with ThreadPoolExecutor(count) as pool:
        for _ in range(rounds):
            started = time.perf_counter()
            list(pool.map(read, parts))
            best = min(best, time.perf_counter() - started)
    return PROBE_BYTES / best


def resident_bytes() -> int | None:
    """Of this process, as the system counts them (Linux); None elsewhere."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine(threads: int | None, package: str) -> dict[str, Any]:
    """What the figures depend on; `package` is the engine's."""
    try:
        engine = version(package)
    except PackageNotFoundError:
        engine = "?"
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads or os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        package: engine,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "?"


def _size(bundle: Bundle) -> int:
    return bundle.size


def bench_text(result: dict[str, Any]) -> str:
    """Tables for a person: of the bundle, and of eager where it was timed too."""
    texts = [_text_of(result)]
    if "eager" in result:
        texts += [
            _text_of(result["eager"]),
            f"the bundle takes {result['frame']['median_ms'] / result['eager']['frame']['median_ms']:.0%} of eager's time",
        ]
    return "\n\n".join(texts)


def _text_of(result: dict[str, Any]) -> str:
    what, machine_, frame = result["bundle"], result["machine"], result["frame"]
    lines = [
        f"{what['name']} for {what['target']}, {what['recipe']}, {_size_text(what['bytes'])}; {machine_['processor']}, {machine_['threads']} threads,"
        f" {result['bandwidth_gb_s']:.0f} GB/s",
        f"{'component':<16} {'calls':>6} {'median':>10} {'90 %':>10} {'weights':>10} {'rate':>10}",
    ]
    for name, row in result["components"].items():
        rate = f"{row['gb_s']:.1f} GB/s" if row["weight_bytes"] else "-"
        lines.append(
            f"{name:<16} {row['calls']:>6} {row['median_ms']:>7.2f} ms {row['p90_ms']:>7.2f} ms {row['weight_bytes'] / 1e6:>7.0f} MB {rate:>10}"
        )
    over_time = [_size_text(size) for size in result["resident_over_time"] if size is not None]
    resident = (
        f", resident {over_time[0]} before the first of these frames and {over_time[-1]} after the last"
        if over_time
        else ""
    )
    said = open_family(what["family"]).bench_lines(result)
    lines += [
        *said[1:],
        f"frame {frame['median_ms']:.1f} ms (90 %: {frame['p90_ms']:.1f}), outside the graphs {frame['outside_ms']:.2f} ms, RTF {result['rtf']:.2f}",
        f"floor {frame['floor_ms']:.1f} ms for {_size_text(frame['weight_bytes'])}: {frame['share_of_floor']:.0%} of what memory allows",
        f"{said[0]}; loaded in {result['load_s']:.1f} s{resident}",
    ]
    return "\n".join(lines)


def _size_text(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
