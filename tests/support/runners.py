"""What tests of the runners in `examples` have in common."""

import json
import subprocess
from pathlib import Path
from typing import Any

from support.programs import need

from voxport.__main__ import main
from voxport.bundle.manifest import Bundle
from voxport.runtime.vectors import read_vectors

PAGE_FAMILIES = ("voxtral_tts", "qwen3_tts", "voxtral_realtime", "qwen3_asr")
TEXT = "Seven green bottles."  # what the fixture `speech` says
DONE = "document.getElementById('stop').disabled"
READY = "document.getElementById('status').textContent.includes('ready')"


def bundle_url(url: str, family_bundles: dict[str, Path], family: str) -> str:
    return f"{url}/bundles/{family_bundles[family].resolve().name}"


def check_vectors(bundle: Path, content: str, tmp_path: Path, code: int = 0) -> None:
    """`voxport vectors --check` ends with this code. `content` is all that a runner computes, as JSON."""
    path = tmp_path / "found.json"
    path.write_text(content)
    assert json.loads(content).keys() >= {each.name for each in read_vectors(Bundle(bundle)).values}
    assert main(["vectors", str(bundle), "--check", str(path)]) == code


def run_script(folder: Path, script: str, *words: object) -> Any:
    """What a script prints in Node as JSON; it imports modules of the page `folder`."""
    command = [need("node"), "--input-type=module", "--eval", script, "--", *map(str, words)]
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


def check_refused(folder: Path, bundle: Path, text: str, tmp_path: Path) -> None:
    """The modules of the page `folder` end with one line that has this text."""
    words = [need("node"), "node.js", str(bundle), str(tmp_path / "out.json")]
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert text in result.stderr
