"""Speed of a bundle on this machine: time per component and per frame, and model bandwidth utilisation (MBU).

MBU is the time to read the weights of a frame at the measured memory bandwidth, over the time of the frame.
"""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import UsageError
from runtime.engines import ENGINES, open_engine
from runtime.engines.base import Engine, EngineOptions, Stream
from runtime.engines.states import Arrays
from runtime.families import open_family, read_constants
from runtime.families.base import BenchSettings, Figures, RuntimeFamily, StartSteps
from runtime.machine import describe_machine, measure_bandwidth, resident_bytes

FRAME_MS = 80.0
WARM_UP_STEPS = 3  # not counted
MEMORY_SAMPLES = 10  # readings of resident memory while steps are timed
FIRST_OUTPUT_RUNS = 3


@dataclass(frozen=True)
class BenchTarget:
    """What is measured. `open` returns a new engine; `weight_bytes` are those that a call of each component
    reads.

    `cache_length` is in rows of the decoder's cache.
    """

    family: RuntimeFamily[Any]  # Any: see `open_family`
    open: Callable[[], Engine]
    constants: Any
    cache_length: int
    weight_bytes: dict[str, int]
    settings: BenchSettings


def bench(
    folder: Path, options: EngineOptions, frames: int, prompt_tokens: int, counts: tuple[int, ...] = ()
) -> Figures:
    """`measure` of a bundle, with the machine and the bundle. Times in ms, sizes in bytes.

    `counts` are batch sizes to time as well: see `BenchSettings`. Raises UsageError where prompt and frames
    do not fit the cache, or where the bundle cannot run a batch size.
    """
    bundle = Bundle(folder)
    job, family = bundle.job, open_family(bundle.job.family)
    constants = read_constants(job)
    family.bench.check_counts({entry.name: entry for entry in bundle.components}, counts)
    target = BenchTarget(
        family,
        lambda: open_engine(bundle, options),
        constants,
        job.cache_length,
        {entry.name: entry.weight_bytes for entry in bundle.components},
        BenchSettings(family.bench.voice(bundle, constants), prompt_tokens, counts),
    )
    return {
        "bundle": {
            "name": job.source.name,
            "family": job.family,
            "target": job.target,
            "recipe": job.request.quant,
            "bytes": bundle.size,
        },
        "machine": describe_machine(options.threads, ENGINES[job.target].packages[0]),
        **measure(target, options.threads, frames),
    }


def measure(target: BenchTarget, threads: int | None, frames: int) -> Figures:
    """Times a workload of `frames` steps of 80 ms, then the batch sizes of the settings.

    Raises UsageError.
    """
    _check_room(target, frames)
    bandwidth = measure_bandwidth(threads)
    engine, prepared, load = _open(target)
    workloads = target.family.bench
    first_output = _first_output(engine, target, prepared)
    stream = TimedStream(engine.stream())
    workload = workloads.start(stream, target.constants, target.settings, prepared)
    times = _time_steps(stream, workload.step, frames)
    components = {
        name: _component(seconds, target.weight_bytes[name], name not in times.before)
        for name, seconds in stream.seconds.items()
    }

    def time_batch(batch: Stream, start: StartSteps) -> tuple[float, dict[str, float]]:
        timed = TimedStream(batch)
        steps = _time_steps(timed, start(timed), frames).steps
        return _median_ms(steps) / 1e3, {name: _median_ms(calls) for name, calls in timed.seconds.items()}

    return {
        "bandwidth_gb_s": bandwidth / 1e9,
        "load_s": load,
        "resident_bytes": times.resident[-1],
        "resident_over_time": times.resident,
        "components": components,
        "frame": _frame(times, components, bandwidth),
        "rtf": _median_ms(times.steps) / FRAME_MS,
        workloads.first_output: first_output,
        "streams": workloads.batched(engine, target.constants, target.settings, prepared, time_batch),
        "prompt_tokens": target.settings.prompt_tokens,
        "voice_rows": len(target.settings.voice),
    }


class TimedStream(Stream):
    """Passes calls on to a stream.

    `seconds` are the times of the calls by component, `total` is their sum.
    """

    def __init__(self, stream: Stream):
        super().__init__(stream.signatures, stream.lock)
        self._stream, self.batch = stream, stream.batch
        self.seconds: dict[str, array[float]] = {}  # 8 bytes per call: the record of an hour stays small
        self.total = 0.0

    def run(self, component: str, inputs: Arrays) -> Arrays:
        started = time.perf_counter()
        outputs = self._run(component, inputs)
        seconds = time.perf_counter() - started
        self.seconds.setdefault(component, array("d")).append(seconds)
        self.total += seconds
        return outputs

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        return self._stream.run(component, inputs)

    def slot(self, index: int) -> Stream:
        return self._stream.slot(index)

    def reset(self) -> None:
        self._stream.reset()

    def snapshot(self) -> Arrays:
        return self._stream.snapshot()

    def restore(self, states: Arrays) -> None:
        self._stream.restore(states)

    def save_rows(self, count: int) -> Arrays:
        return self._stream.save_rows(count)

    def load_rows(self, rows: Arrays) -> None:
        self._stream.load_rows(rows)


def _check_room(target: BenchTarget, frames: int) -> None:
    rows = target.family.bench.rows_needed(target.settings, frames + WARM_UP_STEPS)
    if rows > target.cache_length:
        raise UsageError(
            f"bench: a voice, {target.settings.prompt_tokens} ids and {frames} frames need {rows} rows, "
            f"the cache has {target.cache_length}; time fewer frames"
        )


def _open(target: BenchTarget) -> tuple[Engine, Arrays | None, float]:
    """An engine whose components were all called, the values that later workloads reuse, and seconds of
    loading.

    Loading is the time that the first calls take beyond the same calls later.
    """
    started = time.perf_counter()
    engine = target.open()
    prepared = _first_calls(engine, target)
    first = time.perf_counter() - started
    started = time.perf_counter()
    _first_calls(engine, target)
    return engine, prepared, first - (time.perf_counter() - started)


def _first_calls(engine: Engine, target: BenchTarget) -> Arrays | None:
    workload = target.family.bench.start(engine.stream(), target.constants, target.settings, None)
    workload.step()
    workload.step()
    return workload.prepared


def _first_output(engine: Engine, target: BenchTarget, prepared: Arrays | None) -> float:
    """Median seconds until a new stream gives its first output."""
    seconds = []
    for _ in range(FIRST_OUTPUT_RUNS):
        started = time.perf_counter()
        target.family.bench.start(engine.stream(), target.constants, target.settings, prepared).step()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


@dataclass(frozen=True)
class StepTimes:
    """Seconds of each step, and of each step outside the calls; resident bytes from the first step to the
    last.

    `before` are the components that were called before the first step only.
    """

    steps: "array[float]"
    outside: "array[float]"
    resident: list[int | None]
    before: set[str]


def _time_steps(stream: TimedStream, step: Callable[[], None], count: int) -> StepTimes:
    """Times `count` steps after a warm-up.

    `stream.seconds` then holds the calls of these steps, and for each component called before them only, its
    last call.
    """
    for _ in range(WARM_UP_STEPS):
        step()
    earlier, stream.seconds = stream.seconds, {}
    steps, outside, resident = array("d"), array("d"), [resident_bytes()]
    for index in range(count):
        calls, started = stream.total, time.perf_counter()
        step()
        steps.append(time.perf_counter() - started)
        outside.append(steps[-1] - (stream.total - calls))
        if (index + 1) * MEMORY_SAMPLES // count > index * MEMORY_SAMPLES // count:
            resident.append(resident_bytes())
    before = earlier.keys() - stream.seconds.keys()
    stream.seconds = {name: earlier[name][-1:] for name in earlier if name in before} | stream.seconds
    return StepTimes(steps, outside, resident, before)


def _frame(times: StepTimes, components: dict[str, Figures], bandwidth: float) -> Figures:
    """Figures of a step. `read_ms` is the time to read its weights at `bandwidth` in bytes per second."""
    frames, frame = len(times.steps), _median_ms(times.steps)
    rows = [row for row in components.values() if row["per_frame"]]
    weight_bytes = sum(row["weight_bytes"] * row["calls"] for row in rows) // frames
    read = weight_bytes / bandwidth * 1e3
    return {
        "frames": frames,
        "median_ms": frame,
        "p90_ms": _percentile_ms(times.steps, 90),
        "outside_ms": _median_ms(times.outside),
        "weight_bytes": weight_bytes,
        "read_ms": read,
        "mbu": read / frame,
    }


def _component(seconds: "array[float]", weight_bytes: int, per_frame: bool) -> Figures:
    median = _median_ms(seconds)
    return {
        "calls": len(seconds),
        "median_ms": median,
        "p90_ms": _percentile_ms(seconds, 90),
        "weight_bytes": weight_bytes,
        "gb_s": weight_bytes / median / 1e6,
        "per_frame": per_frame,
    }


def _median_ms(seconds: "array[float]") -> float:
    return _percentile_ms(seconds, 50)


def _percentile_ms(seconds: "array[float]", percent: int) -> float:
    return float(np.percentile(seconds, percent)) * 1e3
