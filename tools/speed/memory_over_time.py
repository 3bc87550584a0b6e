"""Samples the resident memory of one live transcription, after each minute of audio.

    memory_over_time.py BUNDLE --minutes 60 -o OUT.json

The audio is noise, and arrives as fast as the engine takes it. The call is that of
`voxport transcribe - --live`.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from voxport.bundle.manifest import Bundle
from voxport.runtime.engines import ENGINES
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.machine import describe_machine, resident_bytes
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText

BLOCK_S = 0.08


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--minutes", type=int, default=60, help="length of the audio (default: 60)")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    task = open_task(SpeechToText, arguments.bundle, EngineOptions(threads=1))
    resident: list[int | None] = []  # None on systems other than Linux

    def noise() -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        for _ in range(arguments.minutes):
            for _ in range(round(60 / BLOCK_S)):
                yield 0.1 * rng.standard_normal(round(BLOCK_S * task.sample_rate), dtype=np.float32)
            resident.append(resident_bytes())

    started = time.perf_counter()
    for _ in task.transcribe(noise(), live=True):
        pass
    job = Bundle(arguments.bundle).job
    result = {
        "bundle": {"name": job.source.name, "target": job.target, "recipe": job.request.quant},
        "machine": describe_machine(1, ENGINES[job.target].packages[0]),
        "seconds": round(time.perf_counter() - started, 1),
        "resident_bytes_after_each_minute": resident,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
