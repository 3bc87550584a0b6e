"""The server under load. Prints a JSON with what it measured when it ends."""

import asyncio
import gc
import json
import socket
import sys
import time
from contextlib import AbstractAsyncContextManager
from hashlib import sha256

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.serve.http_server import Tasks
from support.serve.loud_to_text import LoudToText
from support.serve.tone_speech import ToneSpeech

from voxport.runtime.machine import describe_machine
from voxport.runtime.serve.address import bind
from voxport.runtime.serve.http.access import Keys
from voxport.runtime.serve.http.app import build_app
from voxport.runtime.serve.http.server import serve
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models

PASS_S, SLOTS = 0.01, 4
TICK_S = 0.02
SEND_BUFFER = (
    8192  # bytes of a connection. By default the kernel takes megabytes for a client that reads none
)
SEND_S = 20.0
TALKERS = ("anna", "bob")
REFUSED = (429, 503)
OTHERS = ("slow", "leaving", "half-open", "garbage")
LISTENERS = ("carol", "dave", "eve")
LIMITS = Limits(jobs_per_key=64, drain_s=1)


def key_of(name: str) -> str:
    return f"{name}-".ljust(20, "k")


NAMES = {key_of(name): name for name in (*TALKERS, *OTHERS, *LISTENERS)}


class LoopLag(AbstractAsyncContextManager["LoopLag"]):
    """How much later than asked a sleeping task runs, in milliseconds."""

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


class RefusalTimes:
    """Measures how long the server takes to refuse: from the head of a request to the head of the answer.

    What the clients measure has also the time in which neither of the two processes runs. What waits when
    the server shuts down was not refused on arrival, and is left out.
    """

    def __init__(self, app: ASGIApp, models: Models) -> None:
        self._app, self._models, self.times = app, models, list[float]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()

        async def timed(message: Message) -> None:
            is_refusal = message["type"] == "http.response.start" and message["status"] in REFUSED
            if is_refusal and not self._models.is_draining:
                self.times.append(1000 * (time.perf_counter() - started))
            await send(message)

        await self._app(scope, receive, timed)


def machine() -> dict[str, str | int | None]:
    """No engine runs, so there is no number of its threads."""
    found = describe_machine(None, "uvicorn")
    del found["threads"]
    return found


def percentiles(values: list[float]) -> dict[str, float]:
    found = np.percentile(values or [0.0], [50, 99, 100])
    return dict(zip(("p50", "p99", "max"), (round(float(each), 2) for each in found), strict=True))


def main() -> None:
    keys = Keys({name: sha256(key.encode()).digest() for key, name in NAMES.items()})
    lag = LoopLag()
    tasks: Tasks = {"tone": ToneSpeech(PASS_S), "loud": LoudToText()}
    models = Models(tasks, LIMITS, SLOTS)
    models.start()
    app = RefusalTimes(build_app(models, keys), models)
    listener = bind("127.0.0.1", int(sys.argv[1]), send_s=SEND_S)
    for each in listener.sockets:  # the connections have what the listener has
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    serve(app, models, listener, lag)
    found = {
        "loop_lag_ms": percentiles(lag.lags),
        "server_refusal_ms": percentiles(app.times),
        "objects_without_collection": gc.get_freeze_count(),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
