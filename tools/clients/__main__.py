"""Runs programs of others against a server, with nothing set but its address and a key.

Each client is installed in an environment of its own, in the user's cache folder. Delete the folder for
newer versions. Prints a line per client; the exit status is 1 if a use of one fails.

    python -m tools.clients --tts TTS --stt STT [NAME ...]
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
import soxr

from tools.clients.recorder import requests, start_proxy
from voxport.runtime.opening import open_task
from voxport.runtime.text_to_speech import TextToSpeech

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "voxport" / "clients"
KEY, ORIGIN = "key-of-the-clients", "http://localhost:18439"
TEXT = "Seven green bottles are standing on the wall."
RATE = 48_000  # of the recording: a multiple of the rates of all sockets
PORTS = {"server": 18430, "recorder": 18431, "wyoming": 18432}


@dataclass(frozen=True)
class Client:
    script: Path
    requirements: tuple[str, ...]
    python: str  # "3.12", if the client needs a newer one than this

    @property
    def folder(self) -> Path:
        name = " ".join((*self.requirements, self.python))
        return CACHE / f"{self.script.stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def install(self) -> None:
        if (self.folder / "installed").exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        print(f"installing {' '.join(self.requirements)}", file=sys.stderr)
        if self.script.suffix == ".mjs":
            install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", "."]
        else:
            python = shutil.which(f"python{self.python}") or sys.executable
            subprocess.run([python, "-m", "venv", "."], cwd=self.folder, check=True)
            install = ["bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *self.requirements], cwd=self.folder, check=True)
        (self.folder / "installed").touch()

    def run(self, environment: dict[str, str]) -> bool:
        """Whether all uses work."""
        if self.script.suffix == ".mjs":  # node looks for packages beside the script
            for path in (self.script, HERE / "checks.mjs"):
                shutil.copy(path, self.folder)
            command, folder = ["node", self.script.name], self.folder
        else:
            command, folder = [str(self.folder / "bin/python"), "-m", f"tools.clients.{self.script.stem}"], ROOT
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        lines = done.stdout.splitlines()
        print(lines[-1] if lines else f"{self.script.stem}: FAILS: {done.stderr[-600:]}", flush=True)
        return done.returncode == 0


def clients(names: list[str]) -> Iterator[Client]:
    """A script names its packages in a line `dependencies:`, or in several to be tried with each."""
    for script in sorted((*HERE.glob("*.py"), *HERE.glob("*.mjs"))):
        text = script.read_text(encoding="utf-8")
        python = re.search(r"^# python: (\S+)$", text, re.M)
        for line in re.findall(r"^(?:#|//) dependencies: (.+)$", text, re.M):
            if not names or script.stem in names:
                yield Client(script, tuple(line.split()), python[1] if python else "")


@contextmanager
def served(bundles: list[Path], folder: Path) -> Iterator[None]:
    """`voxport serve` with a key, and with a web page that may use it."""
    keys = folder / "keys"
    keys.write_text(f"clients:{KEY}\n", encoding="utf-8")
    command = [sys.executable, "-m", "voxport", "serve", "--port", str(PORTS["server"]), "--keys", str(keys)]
    command += [each for bundle in bundles for each in ("--bundle", str(bundle))]
    command += ["--wyoming", f"tcp://127.0.0.1:{PORTS['wyoming']}", "--allow-origin", ORIGIN, "--no-check"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}) as process:
        try:
            end = time.monotonic() + 120
            while not _is_ready():
                assert process.poll() is None and time.monotonic() < end, "the server does not start"
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def _is_ready() -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{PORTS['server']}/readyz", timeout=2))
    except OSError:
        return False


def write_recording(tts: Path, path: Path) -> None:
    speech = open_task(TextToSpeech, tts)
    samples = np.concatenate(list(speech.speak(TEXT)))
    soundfile.write(path, soxr.resample(samples, speech.sample_rate, RATE), RATE, "PCM_16")


def write_requests(connections: list[bytearray], path: Path) -> None:
    found: list[Any] = []
    for sent in connections:
        found += [each for each in requests(bytes(sent), KEY) if each not in found]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in found)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs programs of others against a server.")
    parser.add_argument("--tts", type=Path, required=True, help="bundle that speaks")
    parser.add_argument("--stt", type=Path, required=True, help="bundle that transcribes live")
    parser.add_argument("--record", type=Path, metavar="DIR", help="folder for the requests, as data of a test")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts of tools/clients (default: all)")
    options = parser.parse_args()
    chosen = list(clients(options.names))
    for client in chosen:
        client.install()
    with TemporaryDirectory() as folder, served([options.tts, options.stt], Path(folder)):
        write_recording(options.tts, recording := Path(folder) / "bottles.wav")
        address = f"http://127.0.0.1:{PORTS['recorder']}"
        environment = os.environ | {"VOXPORT_ADDRESS": address, "VOXPORT_KEY": KEY, "MISTRAL_API_KEY": KEY}
        environment |= {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": KEY, "PYTHONWARNINGS": "ignore"}
        environment |= {"VOXPORT_RECORDING": str(recording), "WYOMING_PORT": str(PORTS["wyoming"])}
        environment.pop("PYTHONPATH", None)
        connections, failed = start_proxy(PORTS["recorder"], PORTS["server"]), 0
        for client in chosen:
            connections.clear()
            failed += not client.run(environment)
            if options.record:
                write_requests(connections, options.record / f"{client.script.stem}.json")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
