"""Runs programs of others against a server, with nothing set but its address and a key.

Each is installed in a folder of its own, in the user's cache. Delete the folder for newer versions.
Prints a line per client. The exit status is 1 if a use of one fails.

    python -m tools.clients [--bundle DIR ...] [NAME ...]
    PYTHONPATH=tests python -m tools.clients --record tests/runtime/serve/clients
"""

import argparse
import hashlib
import io
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
from pathlib import Path
from tempfile import TemporaryDirectory

import soundfile
import soxr

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "voxport" / "clients"
KEY, ORIGIN = "key-of-the-clients", "http://localhost:18439"
SERVER, RECORDER, WYOMING = 18430, 18431, 18432  # ports
URL = f"http://127.0.0.1:{SERVER}"
TEXT = "Seven green bottles are standing on the wall."
RATE = 48_000  # of the recording: a multiple of the rates of all sockets


def environments(script: Path) -> Iterator[Path]:
    """A folder for each line `dependencies:` of a script, with these packages."""
    text = script.read_text(encoding="utf-8")
    wanted = re.search(r"^# python: (\S+)$", text, re.M)
    python = shutil.which(f"python{wanted[1]}" if wanted else sys.executable)
    for line in re.findall(r"^(?:#|//) dependencies: (.+)$", text, re.M):
        folder = CACHE / f"{script.stem}-{hashlib.sha256(line.encode()).hexdigest()[:8]}"
        if not (folder / "installed").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", "."]
            if script.suffix == ".py":
                subprocess.run([str(python), "-m", "venv", "."], cwd=folder, check=True)
                install = ["bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, *line.split()], cwd=folder, check=True)
            (folder / "installed").touch()
        yield folder


def run(script: Path, environment: Path, variables: dict[str, str]) -> bool:
    """Whether all uses of a client work."""
    command, folder = [str(environment / "bin/python"), "-m", f"tools.clients.{script.stem}"], ROOT
    if script.suffix == ".mjs":  # node looks for packages beside the script
        command, folder = ["node", script.name], environment
        for path in (script, HERE / "checks.mjs"):
            shutil.copy(path, folder)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    lines = done.stdout.splitlines() or [f"{script.stem} FAILS: {done.stderr[-600:]}"]
    print(lines[-1], flush=True)
    return done.returncode == 0


@contextmanager
def served(bundles: list[Path], folder: Path) -> Iterator[None]:
    """`voxport serve` with a key, and with a web page that may use it."""
    (keys := folder / "keys").write_text(f"clients:{KEY}\n", encoding="utf-8")
    command = [sys.executable, "-m", "voxport", "serve", "--port", str(SERVER), "--keys", str(keys)]
    command += [each for bundle in bundles for each in ("--bundle", str(bundle))]
    command += ["--wyoming", f"tcp://127.0.0.1:{WYOMING}", "--allow-origin", ORIGIN]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}) as process:
        try:
            while not is_ready():  # without bundles, it first exports some
                assert process.poll() is None, "the server does not start"
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def is_ready() -> bool:
    try:
        return bool(urllib.request.urlopen(f"{URL}/readyz", timeout=2))
    except OSError:
        return False


def write_recording(path: Path) -> None:
    """A WAV of the sentence that all clients use, spoken by the server."""
    body = json.dumps({"model": "tts-1", "input": TEXT, "response_format": "wav"}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/v1/audio/speech", body, headers)) as answer:
        samples, rate = soundfile.read(io.BytesIO(answer.read()))
    soundfile.write(path, soxr.resample(samples, rate, RATE), RATE, "PCM_16")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs programs of others against a server.")
    add = parser.add_argument
    add("--bundle", type=Path, action="append", default=[], metavar="DIR", help="as of `voxport serve`")
    add("--record", type=Path, metavar="DIR", help="folder for the requests, as data of a test")
    add("names", nargs="*", metavar="NAME", help="scripts of tools/clients (default: all)")
    options = parser.parse_args()
    scripts = sorted(each for each in HERE.iterdir() if not options.names or each.stem in options.names)
    chosen = [(script, each) for script in scripts if script.is_file() for each in environments(script)]
    with TemporaryDirectory() as folder, served(options.bundle, Path(folder)):
        write_recording(recording := Path(folder) / "bottles.wav")
        address, connections, failed = URL, [], 0
        if options.record:
            from support.serve.client_requests import start_proxy, write_requests

            address, connections = f"http://127.0.0.1:{RECORDER}", start_proxy(RECORDER, SERVER)
        variables = os.environ | {"VOXPORT_ADDRESS": address, "VOXPORT_KEY": KEY, "MISTRAL_API_KEY": KEY}
        variables |= {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": KEY, "PYTHONWARNINGS": "ignore"}
        variables |= {"VOXPORT_RECORDING": str(recording), "WYOMING_PORT": str(WYOMING)}
        for script, environment in chosen:
            failed += not run(script, environment, variables)
            if options.record:
                write_requests(connections, KEY, options.record / f"{script.stem}.json")
            connections.clear()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
