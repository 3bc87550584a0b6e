"""Faults planted in Core ML packages: verification or the executor finds each."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bundle_options import edit_manifest, write_hashes
from support.export.coreml_packages import MODEL, WEIGHTS, verify

from voxport.bundle.manifest import Bundle
from voxport.export.job import make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.runtime.__main__ import main as runtime


@pytest.fixture
def copy(bundles: Path, tmp_path: Path) -> Path:
    """A bundle that a test may damage."""
    return Path(shutil.copytree(bundles / "coreml", tmp_path / "bundle"))


def edit(bundle: Path, package: str, change: Callable[[Any], None]) -> None:
    import coremltools as ct

    path = bundle / package / MODEL
    spec = ct.utils.load_spec(str(path))
    change(spec)
    path.write_bytes(spec.SerializeToString())
    write_hashes(bundle, f"{package}/{MODEL}")


def operations(spec: Any, function: str, kind: str) -> list[Any]:
    return [
        op
        for op in spec.mlProgram.functions[function].block_specializations["CoreML8"].operations
        if op.type == kind
    ]


def swap_float_weights(spec: Any) -> None:
    """Swaps two unquantised arrays of one shape in the weight file. Only their numbers reveal it."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for op in operations(spec, "acoustic_step", "const"):
        value = op.attributes["val"]
        if value.WhichOneof("value") == "blobFileValue" and value.type.tensorType.dataType == 10:
            found.setdefault(
                tuple(size.constant.size for size in value.type.tensorType.dimensions), []
            ).append(value.blobFileValue)
    first, second = next(values for values in found.values() if len(values) > 1)[:2]
    first.offset, second.offset = second.offset, first.offset


def change_an_axis(spec: Any) -> None:
    softmax = operations(spec, "decode_step", "softmax")[0].inputs["axis"].arguments[0]
    axis = next(op for op in operations(spec, "decode_step", "const") if op.outputs[0].name == softmax.name)
    axis.attributes["val"].immediateValue.tensor.ints.values[0] = -2


def drop_a_state_update(spec: Any) -> None:
    block = spec.mlProgram.functions["codec_step"].block_specializations["CoreML8"]
    last = max(index for index, op in enumerate(block.operations) if op.type == "write_state")
    del block.operations[last]


@pytest.mark.parametrize(
    ("precision", "package", "fault", "expected"),
    [
        (
            "float16",
            "backbone.mlpackage",
            change_an_axis,
            {("decode_step", name) for name in ("hidden", "semantic_logits", "condition", "states")},
        ),
        ("float32", "codec.mlpackage", drop_a_state_update, {("codec_step", "states")}),
    ],
)
def test_planted_faults_fail_the_comparison(
    copy: Path,
    short_verification: None,
    capsys: pytest.CaptureFixture[str],
    precision: str,
    package: str,
    fault: Callable[[Any], None],
    expected: set[tuple[str, str]],
) -> None:
    """Faults in two graphs appear in outputs or states of the faulty components, and in nothing else."""
    edit(copy, package, fault)
    edit(copy, "acoustic_step.mlpackage", swap_float_weights)
    assert verify(copy, "--compute-precision", precision, "--json") == 4
    rows = json.loads(capsys.readouterr().out)["rows"]
    failed = {
        (row["component"], row["output"])
        for row in rows
        if not row["passed"] and row["check"].startswith(("outputs", "states")) and "component" in row
    }
    swapped = {("acoustic_step", "next_x"), ("acoustic_step", "velocity")}
    assert failed & swapped and failed & expected and failed <= swapped | expected


def rename(what: str, old: str, new: str | int) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        function = spec.mlProgram.functions["embed_codes"]
        if what == "output":
            block = function.block_specializations["CoreML8"]
            block.outputs[list(block.outputs).index(old)] = new
            next(output for op in block.operations for output in op.outputs if output.name == old).name = new
            spec.description.functions[0].output[0].name = new
        else:
            next(entry for entry in function.inputs if entry.name == old).type.tensorType.dimensions[
                1
            ].constant.size = new

    return change


def read_unknown_state(spec: Any) -> None:
    block = spec.mlProgram.functions["decode_step"].block_specializations["CoreML8"]
    next(op for op in block.operations if op.type == "read_state").inputs["input"].arguments[
        0
    ].name = "embeddings"


def forget_state(spec: Any) -> None:
    inputs = spec.mlProgram.functions["decode_step"].inputs
    inputs.remove(next(entry for entry in inputs if entry.type.WhichOneof("type") == "stateType"))


@pytest.mark.parametrize(
    ("package", "change", "message"),
    [
        (
            "embed_codes.mlpackage",
            rename("output", "embeddings", "vectors"),
            "output embeddings is missing, the manifest says float32 [1, 1, 96]",
        ),
        (
            "embed_codes.mlpackage",
            rename("input", "codes", 36),
            "input codes: no size of axis 1 is possible: the description permits sizes from 37 to 37, "
            "the program has int32[1, 36]",
        ),
        ("backbone.mlpackage", read_unknown_state, "has a value where a state is expected"),
        ("backbone.mlpackage", forget_state, "which is not defined before it"),
        (
            "backbone.mlpackage",
            lambda spec: spec.neuralNetwork.layers.add(),
            "contains neuralNetwork, expected an ML program",
        ),
    ],
)
def test_a_package_that_differs_from_the_manifest_is_a_one_line_error(
    copy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    package: str,
    change: Callable[[Any], None],
    message: str,
) -> None:
    edit(copy, package, change)
    assert (
        runtime(
            ["say", "Hello.", "--bundle", str(copy), "-o", str(tmp_path / "out.wav"), "--max-frames", "2"]
        )
        == 5
    )
    error = capsys.readouterr().err
    assert (
        message in error
        and error.count("voxport: error:") == 1
        and "Traceback" not in error
        and not (tmp_path / "out.wav").exists()
    )


def test_an_unknown_operation_and_a_missing_weight_file_are_named(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(
        copy,
        "embed_codes.mlpackage",
        lambda spec: setattr(operations(spec, "embed_codes", "gather")[0], "type", "scry"),
    )
    assert (
        runtime(["say", "Hello.", "--bundle", str(copy), "-o", str(tmp_path / "out.wav"), "--no-check"]) == 5
    )
    assert (
        "the executor has no operation scry" in capsys.readouterr().err
        and not (tmp_path / "out.wav").exists()
    )
    (copy / "backbone.mlpackage" / WEIGHTS).unlink()
    assert runtime(["mil", str(copy / "backbone.mlpackage")]) == 5
    assert "weight.bin: cannot be read" in capsys.readouterr().err


def test_an_unknown_function_is_named(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_manifest(copy, lambda manifest: manifest["job"]["components"][2].update(entry_point="nothing"))
    assert runtime(["say", "Hello.", "--bundle", str(copy), "-o", str(tmp_path / "out.wav")]) == 5
    assert "no function 'nothing'; expected one of" in capsys.readouterr().err
    assert runtime(["mil", str(copy / "backbone.mlpackage"), "--function", "nothing"]) == 2


def test_a_cache_that_is_longer_in_the_manifest_is_refused(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last rows would otherwise be lost without an error."""

    def lengthen(manifest: Any) -> None:
        backbone = (each for each in manifest["job"]["components"] if each["graph"] == "backbone")
        for state in (state for each in backbone for state in each["signature"]["states"]):
            state["shape"][2] += 1

    edit_manifest(copy, lengthen)
    assert runtime(["say", "Hello.", "--bundle", str(copy), "-o", str(tmp_path / "out.wav")]) == 5
    assert "backbone.mlpackage: its states are not the manifest's; export" in capsys.readouterr().err


def test_a_false_precision_in_the_manifest_is_found(
    copy: Path, short_verification: None, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest is that of a float32 export in every field; only the package is not."""
    job = Bundle(copy).job
    resolved = resolve(Source(checkpoint), job.request)
    float32 = make_job(resolved, open_target("coreml", "float32"), job.source.name)
    edit_manifest(copy, lambda manifest: manifest.update(job=float32.model_dump(mode="json")))
    assert verify(copy, "--compute-precision", "float16") == 4
    assert "compute precision: found float16, expected float32" in capsys.readouterr().err
