"""The server of `voxport serve` on a free port of this machine, in a thread."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from voxport.runtime.serve.address import SEND_S, bind
from voxport.runtime.serve.aliases import Aliases
from voxport.runtime.serve.http.access import Keys
from voxport.runtime.serve.http.app import build_app
from voxport.runtime.serve.http.server import Server, configuration
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import NO_ALIASES, Models, Task
from voxport.runtime.serve.voices.store import VoiceStore

DEFAULT = Limits()
Tasks = Mapping[str, Task]  # by name


@dataclass
class RunningServer:
    port: int
    models: Models
    connections: set[Any]  # open protocols of uvicorn

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def metric(self, name: str, **labels: str) -> float:
        return self.models.metrics.registry.get_sample_value(f"voxport_{name}", labels) or 0.0


@contextmanager
def running(
    tasks: Tasks,
    limits: Limits = DEFAULT,
    keys: Keys | None = None,
    slots: int = 2,
    origins: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    voices: VoiceStore | None = None,
    tls: ssl.SSLContext | None = None,
    send_s: float = SEND_S,
    aliases: Aliases = NO_ALIASES,
    is_strict: bool = False,
) -> Iterator[RunningServer]:
    models = Models(tasks, limits, slots, voices, aliases, is_strict)
    models.start()
    app = build_app(models, keys or Keys(), origins, hosts)
    config = configuration(app, limits, tls)
    config.timeout_graceful_shutdown = 1
    server = Server(config, models)
    listener = bind("127.0.0.1", 0, send_s=send_s)
    thread = threading.Thread(target=server.run, args=(listener.sockets,), daemon=True)
    thread.start()
    wait_until(lambda: server.started and models.is_ready)
    try:
        yield RunningServer(listener.port, models, server.server_state.connections)
    finally:
        server.should_exit = True
        thread.join(10)
        models.drain(0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Raises AssertionError if `condition()` does not become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)
