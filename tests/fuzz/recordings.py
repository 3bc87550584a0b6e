"""Damages recordings of every container, and reads them: `python -m fuzz.recordings --cases 2000`.

Each case is a fork. FFmpeg's containers go to the decoder, with the limits that it always has: a crash is
counted, because it ends only the process of the decoder. libsndfile's go to `Recording`, where a crash is a
fault. It is also a fault if a case takes too long or too much memory, or ends without samples or a reason.
"""

import argparse
import logging
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import NoReturn

import av.subtitles.codeccontext  # imported once, and not by each fork
import av.subtitles.stream
import av.video.stream
import numpy as np
import soundfile
from support.runtime.media import MEDIA, media

from fuzz.mutate import mutate_bytes
from voxport.bundle.errors import UsageError
from voxport.runtime.audio import media_decoder
from voxport.runtime.audio.sources import Recording

SECONDS, PEAK_BYTES = 20.0, 300 * 2**20  # of one case
RATE = 16000
REASONS = "damaged", "truncated", "without an audio track"  # what a reason of the decoder begins with
LIBSNDFILE = {name: "PCM_16" for name in ("WAV", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC")}
LIBSNDFILE |= {"WAV ": "IMA_ADPCM", "OGG": "VORBIS", "OGG ": "OPUS"}

NAMES = (*MEDIA, *LIBSNDFILE)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20, help="cases of each container (default: 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--containers", nargs="+", choices=NAMES, default=NAMES)
    arguments = parser.parse_args()
    faults = 0
    for name in arguments.containers:
        content, results, peak = _contents(name), Counter[str](), 0
        for index in range(arguments.cases):
            case = random.Random(f"{name} {arguments.seed} {index}")
            damaged = mutate_bytes(case, content, 0, case.choice([None, None, 200]))
            result, used = read_in_child(damaged, name in LIBSNDFILE)
            results[result.partition(":")[0]] += 1
            peak = max(peak, used)
            if result.startswith("fault"):
                faults += 1
                print(f"{name}, case {index}, {result}")
        print(f"{name}: {dict(results)}, at most {peak >> 20} MiB", flush=True)
        faults += peak > PEAK_BYTES
    print(f"{faults} faults, seed {arguments.seed}")
    return 1 if faults else 0


def _contents(name: str) -> bytes:
    t = np.arange(RATE // 2) / RATE
    sound = (0.3 * np.sin(2000 * t) * np.cos(9 * t)).astype(np.float32)
    if name in MEDIA:
        return media(name, sound, RATE)
    file = BytesIO()
    soundfile.write(file, sound, RATE, format=name.strip(), subtype=LIBSNDFILE[name])
    return file.getvalue()


def read_in_child(content: bytes, is_own: bool) -> tuple[str, int]:
    """`whole`, `refused`, `crash`, or `fault: ...`, and the peak of memory in bytes.

    `is_own`: `Recording` reads it, else the decoder of FFmpeg.
    """
    reading, writing = os.pipe()  # no file, because the decoder may write none
    with tempfile.NamedTemporaryFile() as source, os.fdopen(reading, "rb") as reasons:
        source.write(content)
        source.flush()
        child = os.fork()
        if not child:
            _run_child(source.fileno(), writing, Path(source.name) if is_own else None)
        os.close(writing)
        deadline = time.monotonic() + SECONDS
        while not (ended := os.wait4(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, 9)
                return f"fault: more than {SECONDS} s", os.wait4(child, 0)[2].ru_maxrss * 1024
            time.sleep(0.001)
        reason = reasons.read().decode("utf-8", "replace").strip()
    code, peak = os.waitstatus_to_exitcode(ended[1]), ended[2].ru_maxrss * 1024
    if code == 0:
        return "whole", peak
    if code == media_decoder.FAULTY and (is_own or reason.startswith(REASONS)) and "\n" not in reason:
        return "refused", peak
    return "crash" if code < 0 and not is_own else f"fault: exit code {code}, {reason[-300:]}", peak


def _run_child(source: int, errors: int, path: Path | None) -> NoReturn:
    code = 1
    try:
        for number, file in enumerate((source, os.open(os.devnull, os.O_WRONLY), errors)):
            os.dup2(file, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if path:
            _read(path)
        else:
            media_decoder.main()
        code = 0
    except UsageError as error:
        code = media_decoder.FAULTY
        print(error, file=sys.stderr)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _read(path: Path) -> None:
    logging.disable()  # warnings
    resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
    recording = Recording(path, RATE)
    recording.peak_dbfs()
    recording.check_whole()
    for _ in recording.blocks():
        pass


if __name__ == "__main__":
    assert av
    sys.exit(main())
