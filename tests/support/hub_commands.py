"""Commands as processes, with the hub's real client, whose hub is on this machine."""

import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.hub import Hub
from support.paths import ROOT


@dataclass(frozen=True)
class Machine:
    """An empty folder to work in, and a cache of the hub."""

    hub: Hub
    folder: Path

    @property
    def cache(self) -> Path:
        return self.folder / "hf" / "hub"

    def environment(self, **more: str) -> dict[str, str]:
        own = {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.folder / "hf"), "HF_HUB_DISABLE_XET": "1"}
        return os.environ | {"PYTHONPATH": str(ROOT / "src")} | own | more

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "voxport", *map(str, arguments)]

    def run(
        self, *arguments: str | Path, max_file: int | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """`max_file` is the size in bytes that a file may have; `more` are variables of the environment."""

        def limit() -> None:
            if max_file:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file, max_file))

        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            preexec_fn=limit,
        )

    def fails(self, code: int, *arguments: str | Path, max_file: int | None = None, **more: str) -> str:
        """The line of error of a command that ends with `code`."""
        done = self.run(*arguments, max_file=max_file, **more)
        assert done.returncode == code, done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("voxport: ")]
        assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
        return lines[0]

    def snapshot(self, name: str, commit: str) -> Path:
        return self.cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit

    def partial_files(self) -> list[Path]:
        return list(self.cache.rglob("*.incomplete"))
