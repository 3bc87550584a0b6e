"""The server under load. Prints a JSON with the lags of its event loop when it ends."""

import asyncio
import json
import sys
import time
from contextlib import AbstractAsyncContextManager
from hashlib import sha256

import numpy as np
from support.serve.loud_to_text import LoudToText
from support.serve.tone_speech import ToneSpeech

from runtime.serve.address import bind
from runtime.serve.http.app import build_app
from runtime.serve.http.keys import Keys
from runtime.serve.http.server import serve
from runtime.serve.limits import Limits
from runtime.serve.metrics import Metrics
from runtime.serve.models import Models

PASS_S, SLOTS = 0.01, 4
TICK_S = 0.02
TALKERS = ("anna", "bob")  # whose shares are compared
OTHERS = ("slow", "leaving", "half-open", "garbage")
LISTENERS = ("carol", "dave", "eve")
LIMITS = Limits(jobs_per_key=64, drain_s=1)


def key_of(name: str) -> str:
    return f"{name}-".ljust(20, "k")


class LoopLag(AbstractAsyncContextManager["LoopLag"]):
    """How much later than asked a sleeping task runs."""

    def __init__(self) -> None:
        self.lags: list[float] = []

    async def __aenter__(self) -> "LoopLag":
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _measure(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self.lags.append(1000 * (time.perf_counter() - started - TICK_S))

    def summary(self) -> dict[str, float]:
        """Milliseconds."""
        middle, most = np.percentile(self.lags, [50, 99])
        return {"p50": round(middle, 2), "p99": round(most, 2), "max": round(max(self.lags), 2)}


def main() -> None:
    keys = Keys({name: sha256(key_of(name).encode()).digest() for name in (*TALKERS, *OTHERS, *LISTENERS)})
    metrics, lag = Metrics(), LoopLag()
    tasks = {"tone": ToneSpeech(PASS_S), "loud": LoudToText()}
    models = Models(tasks, LIMITS, metrics, SLOTS)
    models.start()
    app = build_app(models, metrics, LIMITS, keys)
    serve(app, models, LIMITS, bind("127.0.0.1", int(sys.argv[1])), lag)
    print(json.dumps(lag.summary()), flush=True)


if __name__ == "__main__":
    main()
