"""Every command: what it writes outside of its output, and what it asks the network."""

import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from support.export.cache import ExportCache
from support.paths import GOLDEN, ROOT
from support.runtime.recordings import repeated_sentence, write_recording
from support.serve.http_server import free_port, wait_until

from voxport.cli.main import COMMANDS

pytestmark = pytest.mark.slow
STRACE = ("strace", "-f", "--seccomp-bpf", "-e", "trace=network,openat", "-o")
# An address outside of the process, and the files that a look-up of a name reads first. A socket alone sends
# nothing; urllib3 binds one to the loopback interface to see whether the machine has IPv6.
ASKS = re.compile(r"sa_family=AF_INET|/etc/resolv\.conf|/etc/hosts")
HARMLESS = re.compile(r'\b(bind|accept4|getpeername)\b.*("127\.0\.0\.1"|"::1")|\bgetsockname\b')
# Commands with their arguments. The names in capitals are in the folder `work`.
CALLS = (
    ("export", "--checkpoint CHECKPOINT --target onnx --quant w8 --out out/made --no-verify"),
    ("synth", "out/checkpoint"),
    ("verify", "TTS --checkpoint CHECKPOINT --steps 3 --report out/report.html"),
    ("evaluate", "TTS --alone --count 1 -o out/evaluation.json"),
    ("sweep", "TTS --checkpoint CHECKPOINT --count 1"),
    ("vectors", "TTS"),
    ("web", "TTS out/page"),
    ("list", "--json"),
    ("bench", "TTS --frames 3"),
    ("trace", "TTS --eager --checkpoint CHECKPOINT --inputs INPUTS.npz -o out/eager.npz"),
    ("say", "Hello. --bundle TTS -o out/hello.wav"),
    ("transcribe", "SOUND --bundle STT -o out/text.srt"),
    ("align", "SOUND --text TEXT --bundle ALIGNER -o out/times.json"),
    ("voice", "add anna SOUND --bundle QWEN"),
    ("codec", "encode SOUND out/codes.npz --bundle QWEN"),
    ("serve", "--bundle TTS --port PORT"),
    ("voice", "list --bundle TTS"),
    ("info", "TTS"),
    ("trace", "TTS --inputs INPUTS.npz -o out/trace.npz"),
    ("mil", "COREML"),
    ("inspect", "CHECKPOINT"),
    ("convert", "CHECKPOINT out/mlx --to mlx"),
    ("completion", "bash"),
    ("say", "Hello. --bundle TTS --stream"),
    ("say", "Hello. --bundle COREML_TTS -o out/coreml.wav"),
    ("say", "Hello. --bundle EXECUTORCH_TTS -o out/executorch.wav"),
    ("transcribe", "- --live --bundle STT"),
)
# Places of the user that commands write, as SECURITY.md says.
OWN = ("cache/voxport/", "cache/matplotlib/", "data/voxport/voices/", "work/out/", "work/TTS/verify.json")


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory,
    checkpoint: Path,
    bundles: Path,
    realtime_bundles: Path,
    qwen_bundles: Path,
    exports: ExportCache,
) -> Path:
    """A home of its own, whose folder `work` has links to what commands read. Skips without strace."""
    if not shutil.which("strace"):
        assert "CI" not in os.environ, "strace is missing; .ci/run installs it"
        pytest.skip("needs strace, which shows system calls")
    home = tmp_path_factory.mktemp("home")
    for name in ("user", "cache", "data", "config", "tmp", "work/out"):
        (home / name).mkdir(parents=True)
    shutil.copytree(bundles / "onnx", home / "work" / "TTS")
    links = {"CHECKPOINT": checkpoint, "STT": realtime_bundles / "onnx", "QWEN": qwen_bundles / "onnx"}
    links |= {"COREML_TTS": bundles / "coreml", "EXECUTORCH_TTS": bundles / "executorch"}
    links["COREML"] = bundles / "coreml" / "codec.mlpackage"
    for name, path in links.items():
        (home / "work" / name).symlink_to(path)
    aligner = ["--checkpoint", str(GOLDEN / "qwen3_asr" / "aligner"), "--target", "onnx", "--no-verify"]
    exports.export(home / "work" / "ALIGNER", *aligner, "--cache-length", "512")
    (home / "work" / "TEXT").write_text("Seven green bottles.")
    write_recording(home / "work" / "SOUND", 0.5 * repeated_sentence(2, 24000), 24000, format="WAV")
    voice, noise_rows = np.zeros((0, 96), np.float32), np.zeros((3, 36), np.float32)
    np.savez(home / "work" / "INPUTS.npz", ids=np.arange(5), voice=voice, noise=noise_rows)
    return home


def run(home: Path, command: str, arguments: str) -> tuple[str, set[str]]:
    """The system calls of a command, and the files that it wrote."""
    folders = {"HOME": "user", "TMPDIR": "tmp"}
    folders |= {f"XDG_{name}_HOME": name.lower() for name in ("CACHE", "DATA", "CONFIG")}
    environment = os.environ | {name: str(home / folder) for name, folder in folders.items()}
    for name in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "MPLCONFIGDIR"):
        environment.pop(name, None)
    before = files(home)
    words = [sys.executable, "-m", "voxport", command, *arguments.replace("PORT", str(free_port())).split()]
    process = subprocess.Popen(
        [*STRACE, str(home / "calls"), *words],
        cwd=home / "work",
        env=environment | {"PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    error = ""
    if command == "serve":
        for line in process.stderr:
            error = f"{error}{line}"
            if url := re.search(r"serving .* at (http://\S+)", line):
                wait_until(partial(is_ready, url[1]), 60)
                break
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()), signal.SIGTERM)
    error += process.communicate(timeout=300)[1]
    assert process.returncode == 0 or command == "serve", error
    return (home / "calls").read_text(errors="replace"), files(home) - before


def is_ready(url: str) -> bool:
    """Whether the engines of a server have run: a process that ends before may abort."""
    try:
        return bool(urlopen(f"{url}/readyz", timeout=10).status == 200)
    except URLError:
        return False


def files(home: Path) -> set[str]:
    return {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()} - {"calls"}


def test_every_command_is_tried() -> None:
    """Except `push`, which is for a hub only: tests/cli/test_push.py."""
    assert {command for command, _ in CALLS} | {"push"} == {command.name for command in COMMANDS}


@pytest.mark.parametrize(("command", "arguments"), CALLS)
def test_a_command_asks_nobody_and_writes_its_own_places_only(
    home: Path, command: str, arguments: str
) -> None:
    calls, written = run(home, command, arguments)
    asked = [line for line in calls.splitlines() if ASKS.search(line) and not HARMLESS.search(line)]
    assert calls.count("openat(") > 10 and not asked, "\n".join(asked[:5])
    assert not [name for name in written if not name.startswith(OWN)]
