"""A bundle that is damaged, or that no export writes, gives one line and its exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from support.bundle_options import edit_manifest, write_hashes
from support.commands import error_line, say

from voxport.export.__main__ import main as export
from voxport.runtime.__main__ import main as runtime


def test_a_changed_byte_fails_the_hash_check(
    onnx_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray((onnx_copy / "backbone.onnx.data").read_bytes())
    content[100] ^= 1
    (onnx_copy / "backbone.onnx.data").write_bytes(content)
    assert export(["verify", str(onnx_copy)]) == 5
    assert "backbone.onnx.data" in error_line(capsys)
    assert say(onnx_copy, out=tmp_path / "o.wav") == 5
    assert "backbone.onnx.data" in error_line(capsys) and not (tmp_path / "o.wav").exists()
    assert say(onnx_copy, "Hello.", "--no-check", out=tmp_path / "o.wav") == 0


@pytest.mark.parametrize(
    "name", ["backbone.onnx.data", "tekken.json", "voices/fr_male.safetensors", "backbone.onnx"]
)
def test_missing_and_truncated_files_are_named(
    onnx_copy: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = onnx_copy / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert say(onnx_copy) == 5
    assert name in error_line(capsys)
    path.unlink()
    assert say(onnx_copy) == 5
    assert name in error_line(capsys)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.update(schema_version=99), "update voxport"),
        (lambda m: m.update(schema_version=1), "make it again: voxport export"),
        (lambda m: m["files"].update({"../outside": m["files"]["tekken.json"]}), "inside the bundle"),
        (lambda m: m["files"].update({"/etc/passwd": m["files"]["tekken.json"]}), "inside the bundle"),
        (lambda m: m["job"]["components"][0].update(file="../x.onnx"), "inside the bundle"),
        (lambda m: m["voices"].update(x="voices/none.safetensors"), "not among the files"),
        (lambda m: m["job"].pop("components"), "components"),
        (lambda m: m["job"]["constants"].update(dim="wide"), "dim"),
        (lambda m: m["job"]["constants"].pop("dim"), "dim"),
        (lambda m: m["job"]["constants"].update(first_frame="bogus"), "first_frame"),
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
def test_faults_in_a_manifest_are_named(
    onnx_copy: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], object], says: str
) -> None:
    edit_manifest(onnx_copy, change)
    assert say(onnx_copy) == 5
    assert says in error_line(capsys)


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
def test_a_bundle_of_an_unknown_family_or_target_is_refused(
    onnx_copy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Any], object],
    code: int,
    says: str,
) -> None:
    edit_manifest(onnx_copy, change)
    assert say(onnx_copy, out=tmp_path / "o.wav") == code
    assert says in error_line(capsys)


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
def test_verify_refuses_a_manifest_that_no_export_writes(
    onnx_copy: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], object], says: str
) -> None:
    edit_manifest(onnx_copy, change)
    assert export(["verify", str(onnx_copy), "--steps", "1"]) == 5
    assert says in error_line(capsys)


def test_verify_refuses_another_voice_and_another_tokenizer(
    onnx_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = onnx_copy / "voices" / "fr_male.safetensors"
    rows = load_file(path)["embedding"]
    save_file({"embedding": -rows}, path)
    write_hashes(onnx_copy, "voices/fr_male.safetensors")
    assert export(["verify", str(onnx_copy), "--steps", "1"]) == 5
    assert "fr_male" in error_line(capsys)
    (onnx_copy / "tekken.json").write_text((onnx_copy / "tekken.json").read_text() + "\n")
    write_hashes(onnx_copy, "tekken.json")
    assert export(["verify", str(onnx_copy), "--steps", "1"]) == 5
    assert "tokenizer" in error_line(capsys)


def test_a_source_that_names_no_file_is_refused(onnx_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_manifest(onnx_copy, lambda m: m["job"]["source"].update(files={}))
    assert export(["verify", str(onnx_copy)]) == 2
    assert "consolidated.safetensors is not" in error_line(capsys)


def test_a_file_name_that_is_too_long_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert runtime(["info", "x" * 5000]) == 3
    assert "File name too long" in error_line(capsys)


def test_a_folder_that_does_not_exist_is_a_usage_error(onnx_copy: Path) -> None:
    assert say(onnx_copy / "nowhere") == 2
