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
RECORDING = Path(os.environ["VOXPORT_RECORDING"])  # WAV of TEXT at 48 kHz
SECONDS = 60.0  # of one use


def pcm(rate: int, silence_s: float = 0.0) -> bytes:
    """16-bit samples of the recording, then silence. `rate` divides 48 kHz."""
    with wave.open(str(RECORDING)) as file:
        samples = memoryview(file.readframes(file.getnframes())).cast("h")
    return bytes(samples[:: 48000 // rate]) + bytes(2 * int(silence_s * rate))


async def _result(use: Callable[[], object]) -> object:
    async with asyncio.timeout(SECONDS):
        value = use()
        return await value if inspect.isawaitable(value) else value


def check(packages: str, **uses: Callable[[], object]) -> None:
    """Calls each use, and prints one line. Fails if a use raises an exception or gives nothing."""
    lines = []
    for name, use in uses.items():
        try:
            assert (value := asyncio.run(_result(use))), f"gives {value!r}"
            lines.append(name)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            lines.append(f"{name} FAILS ({type(error).__name__}: {reason})")
    versions = " ".join(f"{package} {version(package)}" for package in packages.split())
    print(f"{versions}: {', '.join(lines)}")
    raise SystemExit(any(" FAILS (" in line for line in lines))
