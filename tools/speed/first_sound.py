"""Times the first frame of Qwen3-TTS with a cloned voice, in requests that follow each other.

    first_sound.py BUNDLE [--requests 5] [--threads 2] -o OUT.json

The voices are of one sound of 5 s: a vector only (`x_vector`), and with its transcript (`icl`). The first
request of a voice reads its prompt, and with a transcript decodes the recording. Later ones find the rows of
the prompt and the states of the codec in memory. A request for another voice comes before all of them. The
user's cache folder is an empty one.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile

from voxport.bundle.manifest import Bundle
from voxport.runtime.engines import ENGINES
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.machine import describe_machine, measure_bandwidth
from voxport.runtime.opening import open_task
from voxport.runtime.prefix_cache import WRITER
from voxport.runtime.text_to_speech import TextToSpeech

RATE, SECONDS = 24_000, 5
TEXT, TRANSCRIPT = "Hello there.", "How are you today? I am very well, thank you for asking me."


def sound(pitch: float) -> np.ndarray:
    """A tone whose pitch and level rise and fall."""
    seconds = np.arange(SECONDS * RATE) / RATE
    tone = np.sin(2 * np.pi * (pitch * seconds + 4 * np.sin(3 * seconds)))
    return np.asarray(0.3 * tone * (0.6 + 0.4 * np.sin(9 * seconds)))


def make_voice(task: TextToSpeech, folder: Path, name: str, pitch: float, transcript: str | None) -> str:
    recording, voice = folder / f"{name}.wav", folder / f"{name}.safetensors"
    soundfile.write(recording, sound(pitch), RATE)
    voice.write_bytes(task.make_voice(recording, transcript))
    return str(voice)


def first_frame(task: TextToSpeech, voice: str) -> float:
    """Milliseconds from the request to the samples of its first frame. The request runs to its end."""
    started = time.perf_counter()
    pieces = task.speak(TEXT, voice=voice, chunk_frames=1, max_frames=4)
    next(pieces)
    found = time.perf_counter() - started
    for _ in pieces:
        pass
    return round(found * 1e3, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        task = open_task(TextToSpeech, arguments.bundle, EngineOptions(threads=arguments.threads))
        first_frame(task, make_voice(task, folder, "other", 220, None))
        voices = {
            kind: make_voice(task, folder, kind, 180, transcript)
            for kind, transcript in (("x_vector", None), ("icl", TRANSCRIPT))
        }
        times = {
            kind: [first_frame(task, voice) for _ in range(arguments.requests)]
            for kind, voice in voices.items()
        }
        WRITER.shutdown()  # rows of voices are written to the folder
    bundle = Bundle(arguments.bundle)
    result = {
        "machine": describe_machine(arguments.threads, ENGINES[bundle.job.target].packages[0]),
        "bandwidth_gb_s": measure_bandwidth(arguments.threads) / 1e9,
        "bundle": {
            "name": bundle.job.source.name,
            "target": bundle.job.target,
            "recipe": bundle.job.request.quant,
            "bytes": bundle.size,
        },
        "first_frame_ms": times,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
