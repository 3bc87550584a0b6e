"""What the scripts of Python clients share. A script runs in the environment of its client."""

import asyncio
import inspect
import os
import wave
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

ADDRESS, KEY = os.environ["VOXPORT_ADDRESS"], os.environ["VOXPORT_KEY"]  # http://HOST:PORT without a path
TEXT, WORD = "Seven green bottles are standing on the wall.", "bottles"
RECORDING = Path(os.environ["VOXPORT_RECORDING"])  # WAV of TEXT
SECONDS = 60.0  # of one use


def pcm(rate: int, silence_s: float = 0.0) -> bytes:
    """16-bit samples of the recording, then silence. The recording has 48 kHz, so a rate divides it."""
    with wave.open(str(RECORDING)) as file:
        samples = memoryview(file.readframes(file.getnframes())).cast("h")[:: file.getframerate() // rate]
    return bytes(samples) + bytes(2 * int(silence_s * rate))


def check(packages: str, *uses: Callable[[], object]) -> None:
    """Calls each use, and prints one line. Fails if a use raises an exception or gives nothing."""
    lines, failures = [], 0
    for use in uses:
        try:
            value = use()
            if inspect.isawaitable(value):
                value = asyncio.run(_limited(value))
            assert value, f"gives {value!r}"
            lines.append(use.__name__)
        except Exception as error:
            failures += 1
            lines.append(f"{use.__name__} FAILS ({type(error).__name__}: {' '.join(str(error).split())[:300]})")
    versions = " ".join(f"{package} {version(package)}" for package in packages.split())
    print(f"{versions}: {', '.join(lines)}")
    raise SystemExit(bool(failures))


async def _limited(value: object) -> object:
    assert inspect.isawaitable(value)
    async with asyncio.timeout(SECONDS):
        return await value
