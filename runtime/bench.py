"""Speed of a bundle on this machine: time per component and per frame, and model bandwidth utilisation (MBU).

MBU is the time to read the weights of a frame at the measured memory bandwidth, over the time of the frame.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import StateSpec
from voxport.runtime.engines import ENGINES, open_engine
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions, Stream
from voxport.runtime.families import Constants, RuntimeFamily, open_family, read_constants
from voxport.runtime.families.workload import BenchSettings, Figures, StartSteps, Workload
from voxport.runtime.machine import describe_machine, resident_bytes
from voxport.runtime.opening import check_engine

FRAME_MS = 80.0
WARM_UP_STEPS = 3  # not counted
MEMORY_SAMPLES = 10  # readings of resident memory while steps are timed
FIRST_OUTPUT_RUNS = 3
Result = TypeVar("Result")


@dataclass(frozen=True)
class BenchTarget(Generic[Constants]):
    """What is measured. `open` returns a new engine; `weight_bytes` are those that a call of each component
    reads.

    `cache_length` is in rows of the decoder's cache.
    """

    family: RuntimeFamily[Constants]
    open: Callable[[], Engine]
    constants: Constants
    cache_length: int
    weight_bytes: dict[str, int]
    settings: BenchSettings


def bench(
    folder: Path, options: EngineOptions, frames: int, prompt_tokens: int, counts: tuple[int, ...] = ()
) -> Figures:
    """`measure` of a bundle, with the machine and the bundle. Times in ms, sizes in bytes.

    `counts` are batch sizes to time as well: see `BenchSettings`. Raises UsageError if prompt and frames
    do not fit the cache, or if the bundle cannot run a batch size.
    """
    bundle = Bundle(folder)
    bundle.check_unlisted()
    check_engine(bundle)
    job, family, constants = bundle.job, open_family(bundle.job.family), read_constants(bundle.job)
    family.bench.check_counts({entry.name: entry for entry in bundle.components}, counts)
    target = BenchTarget(
        family,
        lambda: open_engine(bundle, options),
        constants,
        job.cache_length,
        {entry.name: entry.weight_bytes for entry in bundle.components},
        BenchSettings(family.bench.voice(bundle, constants), prompt_tokens, counts),
    )
    threads = options.thread_count(bundle)
    return {
        "bundle": {
            "name": job.source.name,
            "family": job.family,
            "target": job.target,
            "recipe": job.request.quant,
            "bytes": bundle.size,
        },
        "machine": describe_machine(threads, ENGINES[job.target].packages[0]),
        **measure(target, threads, frames),
    }


def measure(target: BenchTarget[Constants], threads: int | None, frames: int) -> Figures:
    """Times a workload of `frames` steps of 80 ms, then the batch sizes of the settings.

    Raises UsageError.
    """
    rows = target.family.bench.rows_needed(target.settings, frames + WARM_UP_STEPS)
    if rows > target.cache_length:
        raise UsageError(
            f"bench: a voice, {target.settings.prompt_tokens} ids and {frames} frames need {rows} rows, "
            f"the cache has {target.cache_length}; time fewer frames"
        )
    engine, prepared, load = _open(target)
    bandwidth = engine.bandwidth(threads)
    runs = [_timed(lambda: _start(engine.stream(), target, prepared, 1))[1] for _ in range(FIRST_OUTPUT_RUNS)]
    stream = TimedStream(engine.stream())
    times = _time_steps(stream, _start(stream, target, prepared, 0).step, frames)
    components = {
        name: _component(seconds, target.weight_bytes[name], name not in times.before)
        for name, seconds in stream.seconds.items()
    }

    def time_batch(batch: Stream, start: StartSteps) -> tuple[float, dict[str, float]]:
        timed = TimedStream(batch)
        steps = _time_steps(timed, start(timed), frames).steps
        return _ms(steps) / 1e3, {name: _ms(calls) for name, calls in timed.seconds.items()}

    return {
        "engine": engine.identity,
        "bandwidth_gb_s": bandwidth / 1e9,
        "load_s": load,
        "resident_bytes": times.resident[-1],
        "resident_over_time": times.resident,
        "components": components,
        "frame": _frame(times, components, bandwidth),
        "rtf": _ms(times.steps) / FRAME_MS,
        target.family.bench.first_output: float(np.median(runs)),
        "streams": target.family.bench.batched(
            engine, target.constants, target.settings, prepared, time_batch
        ),
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
        return self._time(self._stream.run, component, inputs)

    def run_rows(self, component: str, inputs: Arrays) -> Arrays:
        """Counts as one call."""
        return self._time(self._stream.run_rows, component, inputs)

    def _time(self, call: Callable[[str, Arrays], Arrays], component: str, inputs: Arrays) -> Arrays:
        outputs, seconds = _timed(lambda: call(component, inputs))
        self.seconds.setdefault(component, array("d")).append(seconds)
        self.total += seconds
        return outputs

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        return self._stream.run(component, inputs)

    def slot(self, index: int) -> Stream:
        return self._stream.slot(index)

    def reset(self) -> None:
        self._stream.reset()

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return self._stream._save(states, positions)

    def _load(self, states: Arrays) -> None:
        self._stream.load(states)


def _timed(call: Callable[[], Result]) -> tuple[Result, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def _open(target: BenchTarget[Constants]) -> tuple[Engine, Arrays | None, float]:
    """An engine whose components were all called, the values that later workloads reuse, and seconds of
    loading: the time that the first calls take beyond the same calls later.
    """
    engine, opening = _timed(target.open)
    prepared, first = _timed(lambda: _start(engine.stream(), target, None, 2).prepared)
    later = _timed(lambda: _start(engine.stream(), target, None, 2))[1]
    return engine, prepared, opening + first - later


def _start(stream: Stream, target: BenchTarget[Constants], prepared: Arrays | None, steps: int) -> Workload:
    workload = target.family.bench.start(stream, target.constants, target.settings, prepared)
    for _ in range(steps):
        workload.step()
    return workload


class StepTimes(NamedTuple):
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
    frames, rows = len(times.steps), [row for row in components.values() if row["per_frame"]]
    weight_bytes = sum(row["weight_bytes"] * row["calls"] for row in rows) // frames
    read = weight_bytes / bandwidth * 1e3
    return {
        "frames": frames,
        "median_ms": _ms(times.steps),
        "p90_ms": _ms(times.steps, 90),
        "outside_ms": _ms(times.outside),
        "weight_bytes": weight_bytes,
        "read_ms": read,
        "mbu": read / _ms(times.steps),
    }


def _component(seconds: "array[float]", weight_bytes: int, per_frame: bool) -> Figures:
    return {
        "calls": len(seconds),
        "median_ms": _ms(seconds),
        "p90_ms": _ms(seconds, 90),
        "weight_bytes": weight_bytes,
        "gb_s": weight_bytes / _ms(seconds) / 1e6,
        "per_frame": per_frame,
    }


def _ms(seconds: "array[float]", percentile: int = 50) -> float:
    return float(np.percentile(seconds, percentile)) * 1e3


def bench_text(result: Figures) -> str:
    """Tables of the result of `bench`, and of eager if it was timed too."""
    if "eager" not in result:
        return _table(result)
    ratio = result["frame"]["median_ms"] / result["eager"]["frame"]["median_ms"]
    return "\n\n".join(
        (_table(result), _table(result["eager"]), f"the bundle takes {ratio:.0%} of eager's time")
    )


def _table(result: Figures) -> str:
    bundle, machine, frame = result["bundle"], result["machine"], result["frame"]
    first, *batches = open_family(bundle["family"]).bench.lines(result)
    return "\n".join(
        (
            f"{bundle['name']} for {bundle['target']}, {bundle['recipe']}, {_size(bundle['bytes'])}; "
            f"{result['engine']}, {machine['processor']}, {machine['threads']} threads, "
            f"{result['bandwidth_gb_s']:.0f} GB/s",
            f"{'component':<16} {'calls':>6} {'median':>10} {'90 %':>10} {'weights':>10} {'rate':>10}",
            *(_component_line(name, row) for name, row in result["components"].items()),
            *batches,
            f"frame {frame['median_ms']:.1f} ms (90 %: {frame['p90_ms']:.1f}), "
            f"outside the graphs {frame['outside_ms']:.2f} ms, RTF {result['rtf']:.2f}",
            f"model bandwidth utilisation (MBU) {frame['mbu']:.0%}: "
            f"{_size(frame['weight_bytes'])} of weights take {frame['read_ms']:.1f} ms to read",
            f"{first}; loaded in {result['load_s']:.1f} s{_resident_text(result['resident_over_time'])}",
        )
    )


def _component_line(name: str, row: Figures) -> str:
    rate = f"{row['gb_s']:.1f} GB/s" if row["weight_bytes"] else "-"
    return (
        f"{name:<16} {row['calls']:>6} {row['median_ms']:>7.2f} ms {row['p90_ms']:>7.2f} ms "
        f"{row['weight_bytes'] / 1e6:>7.0f} MB {rate:>10}"
    )


def _resident_text(sizes: list[int | None]) -> str:
    texts = [_size(size) for size in sizes if size is not None]
    return f", resident {texts[0]} before the first timed frame, {texts[-1]} after the last" if texts else ""


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
