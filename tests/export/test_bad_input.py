"""Bad input gives one line (what, where, expected, remedy), the right exit code, and no partial output."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bundle_options import QUANT, edit_manifest, write_hashes
from safetensors.numpy import load_file, save_file

from export.__main__ import main as export
from export.staging import staging
from model.checkpoint_format import MistralFormat
from runtime.__main__ import main as runtime

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def say(bundle, text="Hello.", *more, out="out.wav") -> int:
    return runtime(["say", text, "--bundle", str(bundle), "-o", str(out), *more])


def one_line(capsys) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("voxport: error:")]
    assert len(lines) == 1
    return lines[0]


@pytest.fixture(scope="module")
def bundle(bundles) -> Path:
    return bundles / "onnx"


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("", [], "nothing to speak"),
        ("\x01\x07\t ", [], "nothing to speak"),
        ("😀🎉", [], "nothing to speak"),
        ("ab\0c", [], "NUL character at index 2"),
        ("Hello.", ["--pause", "-1"], "--pause -1.0: expected 0 to 10 seconds"),
        ("Hello.", ["--language", "klingon"], "ISO 639"),
        ("Hello.", ["--file", "text.txt"], "expected one text"),
        ("Hello.", ["--voice", "nobody"], "casual_male, fr_male, neutral_female"),
        ("Hello.", ["--voice", "my_voice.wav"], "no codec encoder"),
        ("Hello.", ["--max-frames", "0"], "at least 1"),
        ("Hello.", ["--seed", "-1"], "at least 0"),
    ],
)
def test_say_refuses(bundle, tmp_path, capsys, text, more, says):
    out = tmp_path / "out.wav"
    assert say(bundle, text, *more, out=out) == 2
    assert says in one_line(capsys)
    assert not list(tmp_path.iterdir())


def test_an_unknown_audio_extension_is_refused(bundle, tmp_path, capsys):
    assert say(bundle, out=tmp_path / "out.aiff") == 2
    assert ".flac" in one_line(capsys)


def test_a_voice_of_the_wrong_width_is_refused(bundle, tmp_path, capsys):
    save_file({"embedding": np.zeros((4, 7), np.float32)}, tmp_path / "v.safetensors")
    assert say(bundle, "Hello.", "--voice", str(tmp_path / "v.safetensors"), out=tmp_path / "o.wav") == 2
    assert "[4, 7]" in one_line(capsys)


def test_a_changed_byte_fails_the_hash_check(onnx_copy, tmp_path, capsys):
    content = bytearray((onnx_copy / "backbone.onnx.data").read_bytes())
    content[100] ^= 1
    (onnx_copy / "backbone.onnx.data").write_bytes(content)
    assert export(["verify", str(onnx_copy)]) == 5
    assert "backbone.onnx.data" in one_line(capsys)
    assert say(onnx_copy, out=tmp_path / "o.wav") == 5
    assert "backbone.onnx.data" in one_line(capsys) and not (tmp_path / "o.wav").exists()
    assert say(onnx_copy, "Hello.", "--no-check", out=tmp_path / "o.wav") == 0


@pytest.mark.parametrize(
    "name", ["backbone.onnx.data", "tekken.json", "voices/fr_male.safetensors", "backbone.onnx"]
)
def test_missing_and_truncated_files_are_named(onnx_copy, capsys, name):
    path = onnx_copy / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert say(onnx_copy) == 5
    assert name in one_line(capsys)
    path.unlink()
    assert say(onnx_copy) == 5
    assert name in one_line(capsys)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.update(schema_version=99), "update voxport"),
        (lambda m: m.update(schema_version=1), "export the bundle again"),
        (lambda m: m["files"].update({"../outside": m["files"]["tekken.json"]}), "inside the bundle"),
        (lambda m: m["files"].update({"/etc/passwd": m["files"]["tekken.json"]}), "inside the bundle"),
        (lambda m: m["job"]["components"][0].update(file="../x.onnx"), "inside the bundle"),
        (lambda m: m["voices"].update(x="voices/none.safetensors"), "not among the files"),
        (lambda m: m["job"].pop("components"), "components"),
        (lambda m: m["job"]["constants"].update(dim="wide"), "dim"),
        (lambda m: m["job"]["constants"].pop("dim"), "dim"),
        (lambda m: m["job"]["options"].update(first_frame="bogus"), "first_frame"),
        (lambda m: m["job"]["recipes"]["codec"].update(linears=3), "recipes.codec.linears"),
        (lambda m: m["verification"].clear(), "verification.status"),
        (lambda m: m["job"]["components"][0]["signature"].update(dims={}), "without bounds"),
        (lambda m: m["job"]["components"].pop(3), "is missing"),
        (
            lambda m: m["job"]["components"][2]["signature"]["outputs"][0].update(name="other"),
            "no output hidden",
        ),
    ],
)
def test_faults_in_a_manifest_are_named(onnx_copy, capsys, change, says):
    edit_manifest(onnx_copy, change)
    assert say(onnx_copy) == 5
    assert says in one_line(capsys)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda m: m["job"].update(family="other_tts"), 2, "other_tts"),
        (lambda m: m["job"].update(target="tflite"), 2, "tflite"),
        (
            lambda m: m["job"]["components"][2]["signature"]["states"][0].update(name="other"),
            5,
            "its states differ",
        ),
        (
            lambda m: m["job"]["components"][2]["signature"]["states"][0].update(shape=[1, 2**40, 2**40]),
            5,
            "at most",
        ),
    ],
)
def test_a_bundle_of_an_unknown_family_or_target_is_refused(onnx_copy, tmp_path, capsys, change, code, says):
    edit_manifest(onnx_copy, change)
    assert say(onnx_copy, out=tmp_path / "o.wav") == code
    assert says in one_line(capsys)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["job"]["request"]["options"].update(alibi_slopes="steep"), "alibi_slopes"),
        (lambda m: m["job"]["request"]["options"].update(more="1"), "more"),
        (lambda m: m["job"]["request"].update(quant="w3"), "w3"),
        (lambda m: m["job"]["recipes"]["codec"].update(name="w3"), "recipes.codec.name"),
        (lambda m: m["job"]["recipes"]["codec"].update(linears=None), "recipe"),
        (
            lambda m: m["job"]["recipes"]["codec"]["rules"].append(
                {"pattern": "nothing.*", "linears": None, "tables": None}
            ),
            "recipe",
        ),
        (lambda m: m["job"]["constants"].update(sample_rate=48000), "constants"),
        (lambda m: m["job"]["constants"].update(bos_id=2**70), "bos_id"),
        (lambda m: m.update(executed_by="nobody"), "executed_by"),
        (lambda m: m["job"].update(cache_length=24), "cache_length"),
        (lambda m: m["job"]["components"][0].update(purpose="other"), "job.components.0.purpose"),
        (lambda m: m["voices"].pop("fr_male"), "voices"),
    ],
)
def test_verify_refuses_a_manifest_that_no_export_writes(onnx_copy, capsys, change, says):
    edit_manifest(onnx_copy, change)
    assert export(["verify", str(onnx_copy), "--steps", "1"]) == 5
    assert says in one_line(capsys)


def test_verify_refuses_another_voice_and_another_tokenizer(onnx_copy, capsys):
    path = onnx_copy / "voices" / "fr_male.safetensors"
    rows = load_file(path)["embedding"]
    save_file({"embedding": -rows}, path)
    write_hashes(onnx_copy, "voices/fr_male.safetensors")
    assert export(["verify", str(onnx_copy), "--steps", "1"]) == 5
    assert "fr_male" in one_line(capsys)
    (onnx_copy / "tekken.json").write_text((onnx_copy / "tekken.json").read_text() + "\n")
    write_hashes(onnx_copy, "tekken.json")
    assert export(["verify", str(onnx_copy), "--steps", "1"]) == 5
    assert "tokenizer" in one_line(capsys)


def test_a_source_that_names_no_file_is_refused(onnx_copy, capsys):
    edit_manifest(onnx_copy, lambda m: m["job"]["source"].update(files={}))
    assert export(["verify", str(onnx_copy)]) == 2
    assert "consolidated.safetensors is not" in one_line(capsys)


def test_a_file_name_that_is_too_long_is_a_one_line_error(capsys):
    assert runtime(["info", "x" * 5000]) == 3
    assert "File name too long" in one_line(capsys)


def test_a_second_export_to_the_same_place_is_refused(tmp_path, capsys):
    with staging(tmp_path / "out"):
        assert export(["--target", "onnx", "--out", str(tmp_path / "out")]) == 2
    assert "another export" in one_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_beside_an_unverified_bundle_are_kept(onnx_copy, capsys):
    edit_manifest(onnx_copy, lambda m: m["verification"].update(status="unverified"))
    (onnx_copy / "diary.txt").write_text("dear diary")
    assert export(["--target", "onnx", *QUANT, "--out", str(onnx_copy)]) == 2
    assert "diary.txt" in one_line(capsys) and (onnx_copy / "diary.txt").exists()


def test_a_folder_that_contains_bundles_lists_them(bundles, tmp_path, capsys):
    assert say(bundles, out=tmp_path / "o.wav") == 2
    assert "coreml, executorch, onnx" in one_line(capsys)


@pytest.mark.parametrize(
    ("more", "says"), [(["--chunk-frames", "2"], "--stream"), (["--threads", "0"], "--threads")]
)
def test_say_refuses_options_that_have_no_effect(bundle, tmp_path, capsys, more, says):
    assert say(bundle, "Hello.", *more, out=tmp_path / "o.wav") == 2
    assert says in one_line(capsys)


def test_a_full_disk_behind_stdout_is_a_one_line_error(bundle):
    for module, arguments in (("runtime", ["info", str(bundle)]), ("export", ["list"])):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", module, *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        assert (
            done.returncode == 3
            and done.stderr.splitlines()[-1].startswith("voxport: error:")
            and "No space left on device" in done.stderr
        )


def test_a_link_that_leaves_the_folder_is_refused(onnx_copy, tmp_path, capsys):
    shutil.move(onnx_copy / "tekken.json", tmp_path / "tekken.json")
    (onnx_copy / "tekken.json").symlink_to(tmp_path / "tekken.json")
    assert say(onnx_copy) == 5


def test_a_manifest_that_is_not_json_is_refused(onnx_copy, capsys):
    (onnx_copy / "manifest.json").write_text("{")
    assert say(onnx_copy) == 5
    assert say(onnx_copy / "nowhere") == 2


def test_a_missing_engine_package_is_named(bundles, tmp_path):
    """A Python without onnxruntime: the message names the extra."""
    code = (
        "import sys, importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'onnxruntime' else find(name, *a);"
        "from runtime.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "say",
        "Hello.",
        "--bundle",
        str(bundles / "onnx"),
        "-o",
        str(tmp_path / "o.wav"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "[onnx]" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--target", "tflite"], 2, "onnx, executorch, coreml"),
        (["--target", "coreml,onnx", "--quant", "lut4"], 2, "onnx cannot store palette weights"),
        (
            ["--target", "onnx", "--quant", "8da4w", "--compute-precision", "float16"],
            2,
            "onnx in float16 cannot store integer weights with integer activations",
        ),
        (["--target", "executorch", "--compute-precision", "float32"], 2, "executorch computes in float32"),
        (["--target", "onnx", "--quant", "w3"], 2, "none, w8, w8g128, w4, w4g128, lut4, 8da4w"),
        (["--target", "onnx", "--quant-for", "voice=w8"], 2, "embed_text"),
        (["--target", "onnx", "--quant-for", "codec"], 2, "COMPONENT=RECIPE"),
        (
            ["--target", "onnx", "--quant-for", "codec=w8", "--quant-for", "codec_step=w4"],
            2,
            "shares its weights",
        ),
        (["--target", "onnx", "--quant-rule", "layers"], 2, "PATTERN=RECIPE"),
        (["--target", "onnx", "--quant-rule", "layer.*=w4"], 2, "matches no weight"),
        (["--target", "onnx", "--cache-length", "63"], 2, "64 to"),
        (["lst"], 2, "verify, convert, list"),
        (["--target", "onnx", "--checkpoint", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_export_refuses(arguments, code, says, tmp_path, capsys):
    assert export([*arguments, "--out", str(tmp_path / "out")]) == code
    assert says in one_line(capsys)
    assert not list(tmp_path.iterdir())


def test_a_group_size_that_does_not_divide_a_row_is_named(checkpoint, tmp_path, capsys):
    """The input projection of the acoustic head has 36 inputs."""
    rule = ["--quant-rule", "acoustic_transformer.input_projection=w4"]
    assert export(["--target", "onnx", *rule, "--out", str(tmp_path / "out")]) == 2
    assert "the 36 inputs of acoustic_transformer.input_projection" in one_line(capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["truncated", "no tekken", "tekken array", "voice width"])
def test_faulty_checkpoints_are_refused(checkpoint, tmp_path, capsys, fault):
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    weights = folder / "consolidated.safetensors"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif fault == "no tekken":
        weights.unlink()
    elif fault == "tekken array":
        (folder / "tekken.json").write_text("[]")
    else:
        torch.save(torch.zeros(4, 9, dtype=torch.bfloat16), folder / "voice_embedding" / "fr_male.pt")
    code = export(["--checkpoint", str(folder), "--target", "onnx", "--out", str(tmp_path / "out")])
    assert code == 5
    assert not (tmp_path / "out").exists()
    assert str(folder) in one_line(capsys)


def test_an_export_on_a_full_disk_leaves_nothing(tmp_path):
    """A limit on file size has the effect of a full disk: exit 3, and no files."""
    code = "import resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000));"
    code += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    code += "from export.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "--target", "onnx", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 3, done.stderr
    assert "space" in done.stderr and not list(tmp_path.iterdir())


def test_a_file_that_shadows_a_package_is_named(tmp_path):
    (tmp_path / "model.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "export", "list"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (
        done.returncode == 2
        and f"{tmp_path / 'model.py'} hides voxport's package 'model'" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize(
    "text",
    ["x" * 100_000, "\u202b\u05e9\u05dc\u05d5\u05dd\u202c.", "e\u0301" * 50, "word " * 3000, "a. " * 50],
    ids=ascii,
)
def test_say_speaks_unusual_text(bundle, tmp_path, text):
    assert say(bundle, text, "--max-frames", "2", out=tmp_path / "out.wav") == 0


@pytest.mark.parametrize("more", [["--stream"], ["-o", "out.wav"]])
def test_stdin_that_ends_within_a_character_is_a_one_line_error(bundle, tmp_path, monkeypatch, capfd, more):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Hé".encode()[:2])))
    assert runtime(["say", "-", "--bundle", str(bundle), *more]) == 2
    assert "stdin: it ends in the middle of a character at byte 1" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unspeakable_text_is_refused_before_the_bundle_is_opened(tmp_path, capsys):
    assert say(tmp_path / "no bundle", "😀") == 2
    assert "nothing to speak" in one_line(capsys)


def test_say_speaks_a_file(bundle, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\ufeffHello there.", encoding="utf-8")
    found = []
    for source in (["Hello there."], ["--file", str(tmp_path / "text.txt")]):
        out = tmp_path / "out.wav"
        assert runtime(["say", *source, "--bundle", str(bundle), "-o", str(out)]) == 0
        found.append(out.read_bytes())
    assert found[0] == found[1]
    assert runtime(["say", "--file", str(tmp_path / "none"), "--bundle", str(bundle), "-o", str(out)]) == 2


def test_say_reads_stdin_and_reports_truncated_speech(bundle, tmp_path, monkeypatch, capsys):
    made = []
    for text, more in (("Hello there.", []), ("-", []), ("-", ["--max-frames", "1"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello there.")))
        assert say(bundle, text, "--json", *more, out=tmp_path / "out.wav") == 0
        made.append(json.loads(capsys.readouterr().out))
    assert made[0]["seconds"] == made[1]["seconds"] > made[2]["seconds"]
    assert [result["ended"] for result in made] == ["budget", "budget", "limit"]


def test_an_export_warns_of_missing_files_that_the_format_has(checkpoint, tmp_path, capsys, monkeypatch):
    bare = shutil.copytree(
        checkpoint, tmp_path / "bare", ignore=shutil.ignore_patterns("tekken.json", "voice_embedding")
    )
    assert export(["--target", "onnx", "--checkpoint", str(bare), "--dry-run"]) == 0
    error = capsys.readouterr().err
    assert "no tokenizer" in error and "no voices" in error
    monkeypatch.setattr(MistralFormat, "has_tokenizer", False)
    assert export(["--target", "onnx", "--checkpoint", str(bare), "--dry-run"]) == 0
    error = capsys.readouterr().err
    assert "no tokenizer" not in error and "no voices" in error


def test_help_answers_without_torch():
    for command in (
        ["export", "--help"],
        ["export", "verify", "--help"],
        ["runtime", "say", "--help"],
        ["model", "synth", "--help"],
    ):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", *command], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0 and "usage" in done.stdout
        assert not [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "torch"]


@pytest.mark.parametrize(
    "command", [["export", "list"], ["export", "--target", "onnx"], ["model", "inspect", "."]]
)
def test_an_export_without_torch_names_the_missing_package(command):
    code = "import sys; sys.modules['torch'] = None;"
    code += f"from {command[0]}.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *command[1:]], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "torch is not installed" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["onnx", "coreml"])
def test_say_works_without_torch(bundles, tmp_path, target):
    code = "import sys; sys.modules['torch'] = None;"
    code += "from runtime.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        code,
        "say",
        "Hello.",
        "--bundle",
        str(bundles / target),
        "-o",
        str(tmp_path / "o.wav"),
        "--max-frames",
        "20",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o.wav").stat().st_size > 1000
