"""`voxport serve` as a process."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from support.serve.http_server import free_port, wait_until

CLONE = (sys.executable, "-m", "voxport")


class ServerProcess:
    """A server on a port of this machine. `program` is the command `voxport`."""

    def __init__(
        self, log: Path, *arguments: object, scheme: str = "http", program: Sequence[object] = CLONE
    ) -> None:
        self.port, self._log = free_port(), log
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        command = [*program, "serve", "--port", self.port, "--threads", 1, *arguments]
        with log.open("wb") as file:
            self.process = subprocess.Popen(list(map(str, command)), stderr=file, stdout=file)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait(self, client: httpx2.Client) -> None:
        """Until it is ready. Raises AssertionError if it ends."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.output
            try:
                return client.get(f"{self.url}/readyz").status_code == 200
            except httpx2.TransportError:
                return False

        wait_until(is_ready, 300)


@contextmanager
def serving(
    log: Path, *arguments: object, scheme: str = "http", program: Sequence[object] = CLONE, **options: Any
) -> Iterator[tuple[ServerProcess, httpx2.Client]]:
    process = ServerProcess(log, *arguments, scheme=scheme, program=program)
    try:
        with httpx2.Client(base_url=process.url, timeout=60, **options) as client:
            process.wait(client)
            yield process, client
    finally:
        process.process.kill()
        process.process.wait()
