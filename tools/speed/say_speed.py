"""Speed of speech as `voxport say` makes it, for several numbers of frames per call of the codec.

    say_speed.py BUNDLE -o OUT.json

`say` decodes one chunk at a call: 5 frames by default into a stream, 64 into a file. The guards against
runaway speech are off, because weights may be random. One process; the sizes take turns.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from bundle.json_types import Json
from bundle.manifest import Bundle
from runtime.bench import FRAME_MS
from runtime.engines import ENGINES
from runtime.engines.base import EngineOptions
from runtime.machine import describe_machine, measure_bandwidth
from runtime.opening import open_task
from runtime.text_to_speech import TextToSpeech

ROUNDS, CHUNKS = 3, (1, 5, 64)
TEXT = "The speed of speech is measured with a sentence of usual length."


def speak(task: TextToSpeech, voice: str | None, frames: int, chunk: int) -> dict[str, float]:
    """Seconds until the first samples, and ms for a frame of the whole speech."""
    started, first, count = time.perf_counter(), 0.0, 0
    pieces = task.speak(TEXT, voice=voice, max_frames=frames, chunk_frames=chunk, budget=None)
    for piece in pieces:
        first = first or time.perf_counter() - started
        count += len(piece) // task.samples_per_frame
    frame = (time.perf_counter() - started) / count * 1e3
    return {"frames": count, "first_sound_s": first, "frame_ms": frame, "rtf": frame / FRAME_MS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--voice", help="name or file (default: that of the bundle)")
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    options = EngineOptions(arguments.threads)
    task, bundle = open_task(TextToSpeech, arguments.bundle, options, False), Bundle(arguments.bundle)
    runs: dict[int, list[dict[str, float]]] = {chunk: [] for chunk in CHUNKS}
    for chunk in CHUNKS:
        speak(task, arguments.voice, chunk, chunk)  # loads, and computes the rows of the voice
    for _ in range(ROUNDS):
        for chunk in CHUNKS:
            runs[chunk].append(speak(task, arguments.voice, arguments.frames, chunk))
    result: Json = {
        "recipe": bundle.job.request.quant,
        "machine": describe_machine(arguments.threads, ENGINES[bundle.job.target].packages[0]),
        "bandwidth_gb_s": measure_bandwidth(arguments.threads) / 1e9,
        "runs_by_chunk_frames": runs,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for chunk, rows in runs.items():
        middle = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
        print(f"{chunk} frames: {middle}")


if __name__ == "__main__":
    main()
