"""How fast a bundle speaks on this machine: per component, per frame, and against what its memory could deliver at best."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from runtime.bundle import Bundle
from runtime.engines import open_engine
from runtime.engines.base import Arrays, Engine, EngineOptions, Stream
from runtime.errors import RuntimeFault, UsageError
from runtime.voices import choose_voice
from runtime.voxtral_tts import BATCHED, FIRST_CODE, Choir, Constants, Speaker, read_constants

FRAME_MS = 80.0
PROBE_BYTES = 2**29  # far beyond any cache
WARM_UP = 3  # frames that are not counted
ONCE = ("prefill", "embed_text")  # called once for an utterance, not for every frame
PACKAGES = {"onnx": "onnxruntime", "executorch": "executorch", "coreml": "coremltools"}


class TimedStream:
    """Passes calls on to a stream and keeps how long each took, in seconds, by component."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self.components, self.cache_length, self.load_rows, self.count = stream.components, stream.cache_length, stream.load_rows, stream.count
        self.seconds: dict[str, list[float]] = {}

    def run(self, component: str, inputs: Arrays) -> Arrays:
        started = time.perf_counter()
        outputs = self._stream.run(component, inputs)
        self.seconds.setdefault(component, []).append(time.perf_counter() - started)
        return outputs


@dataclass(frozen=True)
class Subject:
    """What is measured: `open` gives an engine, `weight_bytes` what a call of each component reads."""

    open: Callable[[], Engine]
    constants: Constants
    cache_length: int
    weight_bytes: dict[str, int]
    voice: np.ndarray  # float32 [rows, dim]


def bench(folder: Path, options: EngineOptions, frames: int = 50, prompt_tokens: int = 20, streams: Sequence[int] = ()) -> dict[str, Any]:
    """`measure` of a bundle, and what it was measured on. Times in ms, sizes in bytes. `streams` are numbers of callers at once.

    Raises UsageError where prompt and frames do not fit the bundle's cache, or one call does not serve so many.
    """
    bundle = Bundle(folder)
    most = min(bundle.component(name).most_streams for name in BATCHED)
    if not all(1 <= count <= most for count in streams):
        raise UsageError(f"bench: --streams {','.join(map(str, streams))}: a call of this bundle serves 1 to {most}")
    manifest = bundle.manifest
    constants = read_constants(manifest)
    voice = choose_voice(bundle, None, constants.dim) if manifest.voices else np.zeros((0, constants.dim), np.float32)
    weights = {entry.name: entry.weight_bytes for entry in manifest.components}
    subject = Subject(lambda: open_engine(bundle, options), constants, manifest.cache_length, weights, voice)
    return {
        "bundle": {"name": manifest.source.name, "target": manifest.target, "recipe": manifest.recipe.name, "bytes": _size(bundle)},
        "machine": machine(options.threads, PACKAGES[manifest.target]),
        **measure(subject, options.threads, frames, prompt_tokens, streams),
    }


def measure(subject: Subject, threads: int | None, frames: int, prompt_tokens: int, streams: Sequence[int] = ()) -> dict[str, Any]:
    """Speaks `frames` frames after a voice and `prompt_tokens` random ids, every code fed back; then with as many callers as `streams` say."""
    constants, rows = subject.constants, len(subject.voice) + prompt_tokens + frames + WARM_UP + 6
    if rows > subject.cache_length:
        raise UsageError(f"bench: a voice, {prompt_tokens} ids and {frames} frames need {rows} rows, the cache has {subject.cache_length}")
    bandwidth = measure_bandwidth(threads)
    started = time.perf_counter()
    engine = subject.open()
    known = _first_call(engine, subject, prompt_tokens)
    first = time.perf_counter() - started
    started = time.perf_counter()
    _first_call(engine, subject, prompt_tokens)
    load = first - (time.perf_counter() - started)  # what the same calls take longer at first
    first_sound = _first_sound(engine, subject, known, prompt_tokens)
    timed = TimedStream(engine.stream())
    whole, loop = _speak(timed, subject, known, prompt_tokens, frames)
    components = {name: _component(seconds, subject.weight_bytes[name], name in ONCE) for name, seconds in timed.seconds.items()}
    read = sum(subject.weight_bytes[name] * calls for name, calls in _calls(constants).items())
    frame = float(np.median(whole)) * 1e3
    floor = read / bandwidth * 1e3
    return {
        "bandwidth_gb_s": bandwidth / 1e9,
        "load_s": load,
        "resident_bytes": resident_bytes(),
        "components": components,
        "frame": {
            "frames": frames,
            "median_ms": frame,
            "p90_ms": float(np.percentile(whole, 90)) * 1e3,
            "outside_ms": float(np.median(loop)) * 1e3,
            "weight_bytes": read,
            "floor_ms": floor,
            "share_of_floor": floor / frame,
        },
        "rtf": frame / FRAME_MS,
        "first_sound_s": first_sound,
        "streams": [_together(engine.together(count), subject, known, prompt_tokens, frames) for count in streams],
        "prompt_tokens": prompt_tokens,
        "voice_rows": len(subject.voice),
    }


def check_eager(checkpoint: Path | None) -> None:
    """Raises UsageError where eager cannot be timed, before the bundle is."""
    if find_spec("torch") is None or find_spec("export") is None:
        raise UsageError("bench: --compare eager needs torch and voxport's exporter; install the extra [export]")
    if checkpoint and not checkpoint.is_dir():
        raise UsageError(f"bench: --checkpoint {checkpoint}: no such folder")


def bench_eager(checkpoint: Path | None, beside: dict[str, Any], threads: int | None) -> dict[str, Any]:
    """The same measurement of the model in eager torch, by the exporter and in a process of its own, because a runtime has no model."""
    sizes = {"frames": beside["frame"]["frames"], "prompt-tokens": beside["prompt_tokens"], "voice-rows": beside["voice_rows"], "threads": threads}
    options = [text for name, value in sizes.items() if value is not None for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "export", "bench", *(["--checkpoint", str(checkpoint)] if checkpoint else []), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeFault("bench: eager could not be timed; what went wrong stands above")
    return dict(json.loads(done.stdout))


def _calls(constants: Constants) -> dict[str, int]:
    """Calls that one frame takes."""
    return {"embed_codes": 1, "decode_step": 1, "acoustic_step": constants.euler_steps, "codec_step": 1}


def _voice_prompt(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Ids and rows that every utterance of a voice begins with."""
    constants = subject.constants
    return np.array([constants.bos_id, constants.begin_audio_id, *[constants.audio_id] * len(subject.voice), constants.begin_audio_id]), subject.voice


def _text(constants: Constants, tokens: int) -> np.ndarray:
    ids = np.random.default_rng(0).integers(0, constants.vocab_size, tokens)
    ids[ids == constants.audio_id] = constants.begin_audio_id
    return np.array([*ids, constants.begin_audio_id, constants.begin_audio_id])


def _first_call(engine: Engine, subject: Subject, tokens: int) -> Arrays:
    """Calls every component, and returns the rows that the voice leaves."""
    stream = engine.stream()
    Speaker(stream, subject.constants).begin(*_voice_prompt(subject))
    known = stream.save_rows(len(_voice_prompt(subject)[0]))
    _speak(TimedStream(stream), subject, known, tokens, 1)
    return known


def _speak(stream: TimedStream, subject: Subject, known: Arrays, tokens: int, frames: int) -> tuple[list[float], list[float]]:
    """Seconds of every frame, and of what of it was spent outside the graphs."""
    constants = subject.constants
    speaker = Speaker(stream, constants)  # type: ignore[arg-type]  # all that a speaker asks of a stream
    noise = np.random.default_rng(1).standard_normal((frames + WARM_UP, 1, constants.n_codebooks - 1), dtype=np.float32)
    speaker.resume(known, len(_voice_prompt(subject)[0]))
    speaker.prefill(_text(constants, tokens), subject.voice[:0])
    whole, outside = [], []
    for index in range(frames + WARM_UP):
        if index == WARM_UP:
            stream.seconds = {name: seconds for name, seconds in stream.seconds.items() if name in ONCE}
        before, started = _total(stream), time.perf_counter()
        codes = speaker.frame(noise[index])
        codes[0, 0] = max(codes[0, 0], FIRST_CODE)  # a model that would stop goes on
        speaker.decode(codes)
        speaker.step(speaker.embed(codes))
        elapsed = time.perf_counter() - started
        if index >= WARM_UP:
            whole.append(elapsed)
            outside.append(elapsed - (_total(stream) - before))
    return whole, outside


def _together(stream: Stream, subject: Subject, known: Arrays, tokens: int, frames: int) -> dict[str, Any]:
    """Frames of all callers a second, each frame of them one pass through the graphs but the codec's; medians in ms."""
    constants, count = subject.constants, stream.count
    timed = TimedStream(stream)
    choir = Choir(timed, constants)  # type: ignore[arg-type]  # all that a choir asks of a stream
    singers = [Speaker(stream.alone(index), constants) for index in range(count)]
    for singer in singers:
        singer.resume(known, len(_voice_prompt(subject)[0]))
        singer.prefill(_text(constants, tokens), subject.voice[:0])
    choir.singers[:] = singers
    noise = np.random.default_rng(1).standard_normal((frames + WARM_UP, count, constants.n_codebooks - 1), dtype=np.float32)
    whole = []
    for index in range(frames + WARM_UP):
        if index == WARM_UP:
            timed.seconds = {}
        started = time.perf_counter()
        codes = choir.frame(noise[index])
        codes[:, 0] = np.maximum(codes[:, 0], FIRST_CODE)
        for singer, row in zip(singers, codes, strict=True):
            singer.decode(row[None])
        choir.step(codes)
        whole.append(time.perf_counter() - started)
    pass_s = float(np.median(whole[WARM_UP:]))
    calls = {name: float(np.median(seconds)) * 1e3 for name, seconds in timed.seconds.items()}
    return {"streams": count, "frames_per_s": count / pass_s, "pass_ms": pass_s * 1e3, "median_ms": calls}


def _total(stream: TimedStream) -> float:
    return sum(sum(seconds) for seconds in stream.seconds.values())


def _first_sound(engine: Engine, subject: Subject, known: Arrays, tokens: int, runs: int = 3) -> float:
    """Seconds from a text to the samples of its first frame, in a new stream of a voice whose rows are known; median of `runs`."""
    constants = subject.constants
    noise, seconds = np.zeros((1, constants.n_codebooks - 1), np.float32), []
    for _ in range(runs):
        started = time.perf_counter()
        speaker = Speaker(engine.stream(), constants)
        speaker.resume(known, len(_voice_prompt(subject)[0]))
        speaker.prefill(_text(constants, tokens), subject.voice[:0])
        codes = speaker.frame(noise)
        codes[0, 0] = max(codes[0, 0], FIRST_CODE)
        speaker.decode(codes)
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def _component(seconds: list[float], weight_bytes: int, once: bool) -> dict[str, Any]:
    median = float(np.median(seconds))
    figures = {"calls": len(seconds), "median_ms": median * 1e3, "p90_ms": float(np.percentile(seconds, 90)) * 1e3, "weight_bytes": weight_bytes}
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
    return sum(entry.size for entry in bundle.manifest.files.values())


def bench_text(result: dict[str, Any]) -> str:
    """Tables for a person: of the bundle, and of eager where it was timed too."""
    texts = [_text_of(result)]
    if "eager" in result:
        texts += [_text_of(result["eager"]), f"the bundle takes {result['frame']['median_ms'] / result['eager']['frame']['median_ms']:.0%} of eager's time"]
    return "\n\n".join(texts)


def _text_of(result: dict[str, Any]) -> str:
    what, machine_, frame = result["bundle"], result["machine"], result["frame"]
    lines = [
        f"{what['name']} for {what['target']}, {what['recipe']}, {what['bytes'] / 1e9:.2f} GB; {machine_['processor']}, {machine_['threads']} threads,"
        f" {result['bandwidth_gb_s']:.0f} GB/s",
        f"{'component':<16} {'calls':>6} {'median':>10} {'90 %':>10} {'weights':>10} {'rate':>10}",
    ]
    for name, row in result["components"].items():
        rate = f"{row['gb_s']:.1f} GB/s" if row["weight_bytes"] else "-"
        lines.append(f"{name:<16} {row['calls']:>6} {row['median_ms']:>7.2f} ms {row['p90_ms']:>7.2f} ms {row['weight_bytes'] / 1e6:>7.0f} MB {rate:>10}")
    resident = "" if result["resident_bytes"] is None else f", resident {result['resident_bytes'] / 1e9:.2f} GB"
    lines += [f"{row['streams']} at once: {row['frames_per_s']:.1f} frames/s, {row['pass_ms']:.0f} ms for one of each" for row in result["streams"]]
    lines += [
        f"frame {frame['median_ms']:.1f} ms (90 %: {frame['p90_ms']:.1f}), outside the graphs {frame['outside_ms']:.2f} ms, RTF {result['rtf']:.2f}",
        f"floor {frame['floor_ms']:.1f} ms for {frame['weight_bytes'] / 1e9:.2f} GB: {frame['share_of_floor']:.0%} of what memory allows",
        f"first sound {result['first_sound_s']:.2f} s after {result['prompt_tokens']} ids of a known voice; loaded in {result['load_s']:.1f} s{resident}",
    ]
    return "\n".join(lines)
