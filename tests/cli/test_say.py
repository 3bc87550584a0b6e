"""`say`: texts from each source, and one line for what it refuses."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.commands import error_line, say
from support.paths import ROOT

from voxport.runtime.__main__ import main as runtime


@pytest.fixture(scope="module")
def bundle(bundles: Path) -> Path:
    return bundles / "onnx"


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("", [], "nothing to speak"),
        ("\x01\x07\t ", [], "nothing to speak"),
        ("😀🎉", [], "error: text: has no word or number, so there is nothing to speak"),
        ("ab\0c", [], "NUL character at index 2"),
        ("Hello.", ["--pause", "-1"], "--pause -1.0: expected 0 to 10 seconds"),
        ("Hello.", ["--language", "klingon"], "ISO 639"),
        ("Hello.", ["--file", "text.txt"], "expected one text"),
        ("Hello.", ["--voice", "nobody"], "casual_male, fr_male, neutral_female"),
        ("Hello.", ["--voice", "my_voice.wav"], "no codec encoder"),
        ("Hello.", ["--max-frames", "0"], "at least 1"),
        ("Hello.", ["--seed", "-1"], "at least 0"),
        ("Hello.", ["--text-layout", "streaming"], "this model has one layout; leave it out"),
        ("Hello.", ["--text-layout", "wide"], "invalid choice: 'wide'"),
        ("Hello.", ["--chunk-frames", "2"], "--chunk-frames needs --stream"),
        ("Hello.", ["--threads", "0"], "--threads"),
        ("Hello.", ["-o", "out.aiff"], ".flac"),
    ],
)
def test_say_refuses(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], says: str
) -> None:
    out = tmp_path / "out.wav"
    assert say(bundle, text, *more, out=out) == 2
    assert says in error_line(capsys)
    assert not list(tmp_path.iterdir())


def test_a_voice_of_the_wrong_width_is_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"embedding": np.zeros((4, 7), np.float32)}, tmp_path / "v.safetensors")
    assert say(bundle, "Hello.", "--voice", str(tmp_path / "v.safetensors"), out=tmp_path / "o.wav") == 2
    assert "[4, 7]" in error_line(capsys)


def test_a_folder_that_contains_bundles_lists_them(
    bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).symlink_to(bundles / "onnx")
    assert say(folder, out=tmp_path / "o.wav") == 2
    assert "one of the bundles in it: one, two" in error_line(capsys)


def test_a_missing_engine_package_is_named(bundles: Path, tmp_path: Path) -> None:
    """A Python without onnxruntime: the message names the extra."""
    code = (
        "import sys, importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'onnxruntime' else find(name, *a);"
        "from voxport.runtime.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "say", "Hello.", "--bundle", str(bundles / "onnx")]
    command += ["-o", str(tmp_path / "o.wav")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "[onnx]" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["x" * 100_000, "\u202bHello\u202c \u05e9.", "e\u0301" * 50, "word " * 3000, "a. " * 50],
    ids=ascii,
)
def test_say_speaks_unusual_text(bundle: Path, tmp_path: Path, text: str) -> None:
    assert say(bundle, text, "--max-frames", "2", out=tmp_path / "out.wav") == 0


@pytest.mark.parametrize("more", [["--stream"], ["-o", "out.wav"]])
def test_stdin_that_ends_within_a_character_is_a_one_line_error(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Hé".encode()[:2])))
    assert runtime(["say", "-", "--bundle", str(bundle), *more]) == 2
    assert "stdin: it ends in the middle of a character at byte 1" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_say_speaks_a_file(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("\ufeffHello there.", encoding="utf-8")
    found = []
    for source in (["Hello there."], ["--file", str(tmp_path / "text.txt")]):
        out = tmp_path / "out.wav"
        assert runtime(["say", *source, "--bundle", str(bundle), "-o", str(out)]) == 0
        found.append(out.read_bytes())
    assert found[0] == found[1]
    assert runtime(["say", "--file", str(tmp_path / "none"), "--bundle", str(bundle), "-o", str(out)]) == 2


def test_say_reads_stdin_and_reports_truncated_speech(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for text, more in (("Hello there.", []), ("-", []), ("-", ["--max-frames", "1"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello there.")))
        assert say(bundle, text, "--json", *more, out=tmp_path / "out.wav") == 0
        made.append(json.loads(capsys.readouterr().out))
    assert made[0]["seconds"] == made[1]["seconds"] > made[2]["seconds"]
    # Random weights: the processor's rounding decides if the speech ends by itself or at the budget.
    assert made[0]["ended"] == made[1]["ended"] != made[2]["ended"] == "limit"


@pytest.mark.parametrize(
    ("target", "absent"),
    [
        ("onnx", ["torch"]),
        ("coreml", ["torch"]),
        ("coreai", ["torch", "coreai_torch"]),
        # ExecuTorch needs torch, but neither its own exporter nor torch's compiler: seconds of imports
        pytest.param(
            "executorch", ["executorch.exir", "torch._dynamo", "torch._inductor"], marks=pytest.mark.slow
        ),
    ],
)
def test_say_works_without_torch_or_compilers(
    bundles: Path, tmp_path: Path, target: str, absent: list[str]
) -> None:
    code = f"import sys; sys.modules |= dict.fromkeys({absent});"
    code += "from voxport.runtime.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "say", "Hello.", "--bundle", str(bundles / target)]
    command += ["-o", str(tmp_path / "o.wav"), "--max-frames", "20"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o.wav").stat().st_size > 1000
