"""Speed of a bundle on this machine: time per component and per frame, and model bandwidth utilisation (MBU).

MBU is the time to read the weights of a frame at the measured memory bandwidth, over the time of the frame.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import StateSpec
from voxport.runtime.batching import max_slots
from voxport.runtime.engines import ENGINES, open_engine
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions, Stream
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.families.workload import BenchSettings, Figures, Workload
from voxport.runtime.machine import describe_machine, resident_bytes
from voxport.runtime.opening import check_engine

WARM_UP_STEPS = 3  # not counted
FIRST_OUTPUT_RUNS = 3
Result = TypeVar("Result")
Start = Callable[[Stream, Arrays | None], Workload]  # on a stream, with the values of an earlier workload


def bench(
    folder: Path, options: EngineOptions, frames: int, prompt_tokens: int, streams: tuple[int, ...] = ()
) -> Figures:
    """Times a workload of `frames` steps, then batches of `streams`. Times in ms, sizes in bytes.

    Raises UsageError if prompt and frames do not fit the cache, or if the bundle cannot run a batch.
    """
    bundle = Bundle(folder)
    bundle.check_unlisted()
    check_engine(bundle)
    job, constants = bundle.job, read_constants(bundle.job)
    workloads, entry = open_family(job.family).bench, ENGINES[job.target]
    if entry.needs_hashes:
        bundle.check_hashes()
    threads = options.thread_count(bundle) if entry.has_threads else None
    workloads.check(bundle)
    if streams:
        check_streams(streams, max_slots(bundle.components, workloads.batched))
    settings = BenchSettings(workloads.voice(bundle, constants), prompt_tokens)
    rows = workloads.rows_needed(settings, frames + WARM_UP_STEPS)
    if rows > job.cache_length:
        raise UsageError(
            f"bench: a voice, {prompt_tokens} ids and {frames} frames need {rows} rows, "
            f"the cache has {job.cache_length}; time fewer frames"
        )

    def start(stream: Stream, prepared: Arrays | None) -> Workload:
        return workloads.start(stream, constants, settings, prepared)

    step_s = workloads.step_seconds(constants)
    engine, prepared, load = _open(partial(_open_ahead, bundle, options), start)
    first_output, stream = _first_output(engine, start, prepared), TimedStream(engine.stream())
    return {
        "bundle": _described(bundle),
        "machine": describe_machine(threads, entry.packages[0]) | {"threads": threads},
        "engine": engine.identity,
        "load_s": load,
        workloads.first_output: first_output,
        **_frames(stream, start(stream, prepared), frames, engine.bandwidth(threads), bundle, step_s),
        "streams": [_batch(engine.batched(count), start, prepared, frames) for count in streams],
        "prompt_tokens": prompt_tokens,
        "voice_rows": len(settings.voice),
    }


def _open_ahead(bundle: Bundle, options: EngineOptions) -> Engine:
    """The engine, which opens components as tasks do."""
    engine = open_engine(bundle, options)
    engine.open_ahead(open_family(bundle.job.family).calls(bundle.job))
    return engine


def _described(bundle: Bundle) -> Figures:
    job = bundle.job
    found: Figures = {"name": job.source.name, "family": job.family, "target": job.target}
    return found | {"recipe": job.request.quant, "bytes": bundle.size}


def _open(open: Callable[[], Engine], start: Start) -> tuple[Engine, Arrays | None, float]:
    """An engine whose components were all called, the values that later workloads reuse, and seconds of
    loading: the time that the first calls take beyond the same calls later.
    """

    def run() -> Workload:
        workload = start(engine.stream(), None)
        for _ in range(2):
            workload.step()
        return workload

    engine, opening = _timed(open)
    workload, first = _timed(run)
    return engine, workload.prepared, opening + first - _timed(run)[1]


def _first_output(engine: Engine, start: Start, prepared: Arrays | None) -> float:
    """Seconds until the first output of a new stream."""
    runs = [_timed(lambda: start(engine.stream(), prepared).step())[1] for _ in range(FIRST_OUTPUT_RUNS)]
    return float(np.median(runs))


def _frames(
    stream: "TimedStream",
    workload: Workload,
    frames: int,
    bandwidth: float,
    bundle: Bundle,
    step_s: float,
) -> Figures:
    """Figures of `frames` steps and of each component. `bandwidth` is in bytes per second. A step stands for
    `step_s` seconds of audio.
    """
    times = _time_steps(stream, workload.step, frames)
    components = {
        name: _component(seconds, bundle.component(name).weight_bytes, name not in times.before)
        for name, seconds in stream.seconds.items()
    }
    return {
        "bandwidth_gb_s": bandwidth / 1e9,
        "resident_bytes": resident_bytes(),
        "components": components,
        "frame": _frame(times, components, bandwidth),
        "rtf": _ms(times.steps) / 1e3 / step_s,
        "step_s": step_s,
    }


def check_streams(streams: tuple[int, ...], limit: int) -> None:
    """Raises UsageError if one call cannot serve so many streams."""
    if not all(1 <= count <= limit for count in streams):
        raise UsageError(
            f"streams {','.join(map(str, streams))}: one call of this bundle serves 1 to {limit} "
            "streams; time fewer",
            field="streams",
        )


def _batch(stream: Stream, start: Start, prepared: Arrays | None, frames: int) -> Figures:
    """Frames per second of all slots of a stream together."""
    timed = TimedStream(stream)
    seconds = _ms(_time_steps(timed, start(timed, prepared).step, frames).steps) / 1e3
    return {
        "streams": stream.batch,
        "frames_per_s": stream.batch / seconds,
        "pass_ms": seconds * 1e3,
        "median_ms": {name: _ms(calls) for name, calls in timed.seconds.items()},
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


class StepTimes(NamedTuple):
    """Seconds of each step, and of each step outside the calls. `before` are the components that were called
    before the first step only.
    """

    steps: "array[float]"
    outside: "array[float]"
    before: set[str]


def _time_steps(stream: TimedStream, step: Callable[[], None], count: int) -> StepTimes:
    """Times `count` steps after a warm-up.

    `stream.seconds` then holds the calls of these steps, and for each component called before them only, its
    last call.
    """
    for _ in range(WARM_UP_STEPS):
        step()
    earlier, stream.seconds = stream.seconds, {}
    steps, outside = array("d"), array("d")
    for _ in range(count):
        calls = stream.total
        steps.append(_timed(step)[1])
        outside.append(steps[-1] - (stream.total - calls))
    before = earlier.keys() - stream.seconds.keys()
    stream.seconds = {name: earlier[name][-1:] for name in earlier if name in before} | stream.seconds
    return StepTimes(steps, outside, before)


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
    """A table of the result of `bench`."""
    bundle, machine, frame = result["bundle"], result["machine"], result["frame"]
    size, count = result["resident_bytes"], machine["threads"]
    threads = "" if count is None else f"{count} threads, "
    resident = "" if size is None else f", {_size(size)} resident after the last frame"
    first = open_family(bundle["family"]).bench.summary.format(**result)
    batches = (
        f"{row['streams']} streams: {row['frames_per_s']:.1f} frames/s, "
        f"{row['pass_ms']:.0f} ms for a frame of each"
        for row in result["streams"]
    )
    return "\n".join(
        (
            f"{bundle['name']} for {bundle['target']}, {bundle['recipe']}, {_size(bundle['bytes'])}; "
            f"{result['engine']}, {machine['processor']}, {threads}"
            f"{result['bandwidth_gb_s']:.0f} GB/s",
            f"{'component':<16} {'calls':>6} {'median':>10} {'90 %':>10} {'weights':>10} {'rate':>10}",
            *(_component_line(name, row) for name, row in result["components"].items()),
            *batches,
            f"{result['step_s']:g} s of sound in {frame['median_ms']:.1f} ms (90 %: {frame['p90_ms']:.1f}), "
            f"outside the graphs {frame['outside_ms']:.2f} ms, RTF {result['rtf']:.3g}",
            f"model bandwidth utilisation (MBU) {frame['mbu']:.0%}: "
            f"{_size(frame['weight_bytes'])} of weights take {frame['read_ms']:.1f} ms to read",
            f"{first}; loaded in {result['load_s']:.1f} s{resident}",
        )
    )


def _component_line(name: str, row: Figures) -> str:
    rate = f"{row['gb_s']:.1f} GB/s" if row["weight_bytes"] else "-"
    return (
        f"{name:<16} {row['calls']:>6} {row['median_ms']:>7.2f} ms {row['p90_ms']:>7.2f} ms "
        f"{row['weight_bytes'] / 1e6:>7.0f} MB {rate:>10}"
    )


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
