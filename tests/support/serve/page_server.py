"""A server for the page, with two tasks without a model: a tone as long as its text, and words for sounds."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from support.serve.http_server import Tasks, metric
from support.serve.loud_to_text import LoudToText
from support.serve.tone_speech import ToneSpeech

from voxport.runtime.serve.http.app import build_app
from voxport.runtime.serve.http.keys import Keys
from voxport.runtime.serve.http.server import Server
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models

BROKEN = "Broken"  # a text that begins so fails after five frames


def break_off(text: str, frame: int) -> None:
    if text.startswith(BROKEN) and frame == 5:
        raise RuntimeError("broken")


class PageServer:
    """A running server. `models` and `metrics` show what it does."""

    def __init__(self, port: int, models: Models, metrics: Metrics) -> None:
        self.port, self.models, self.metrics = port, models, metrics
        self.url = f"http://127.0.0.1:{port}/"

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.metrics, name, **labels)


@contextmanager
def running_server(
    keys: Keys | None = None, pace_s: float = 0.02, origin: str | None = None
) -> Iterator[PageServer]:
    """Serves both tasks on a free port of the loopback interface. `origin` has %d for the port."""
    limits, metrics = Limits(), Metrics()
    tasks: Tasks = {
        "tone": ToneSpeech(pace_s, break_off),
        "count": LoudToText(whole_sounds=True),
    }
    models = Models(tasks, limits, metrics)
    models.start()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = build_app(models, metrics, limits, keys or Keys(), [origin % port] if origin else [])
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="websockets-sansio", lifespan="off")
    server = Server(config, models, Limits(drain_s=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not (server.started and models.is_ready):
            time.sleep(0.01)
        yield PageServer(port, models, metrics)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        models.drain(0)
        listener.close()
