"""Core ML bundles in the reference executor: speech, traces, packages, and options."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.export.coreml_packages import WEIGHTS, verify
from support.export.rounding import float16_bar, float32_bar

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.export.verify.comparison import FLOAT16_BAR
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.engines.coreml import ReferenceEngine
from voxport.runtime.families import read_constants


@pytest.fixture(scope="module")
def inputs(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    constants = read_constants(Bundle(bundles / "coreml").job)
    rng = np.random.default_rng(0)
    frames, books = 12, constants.n_codebooks
    codes = np.concatenate(
        (
            rng.integers(2, 2 + constants.semantic_codes, (frames, 1)),
            rng.integers(2, 23, (frames, books - 1)),
        ),
        axis=1,
    )
    path = tmp_path_factory.mktemp("inputs") / "in.npz"
    ids = np.concatenate(
        ([constants.bos_id, constants.begin_audio_id], rng.integers(1000, constants.vocab_size, 20))
    )
    noise = rng.standard_normal((frames, books - 1), dtype=np.float32)
    np.savez(
        path,
        ids=ids,
        voice=np.zeros((0, constants.dim), np.float32),
        noise=noise,
        codes=codes,
        codec_codes=codes[None],
    )
    return path


def traced(bundle: Path, inputs: Path, out: Path, *more: str) -> dict[str, np.ndarray]:
    assert runtime(["trace", str(bundle), "--inputs", str(inputs), "-o", str(out), *more]) == 0
    with np.load(out) as file:
        return dict(file)


def test_the_bundle_speaks_and_logs_its_executor_once(
    bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say = ["say", "Hello there.", "--bundle", str(bundles / "coreml"), "-o", str(tmp_path / "out.wav")]
    capsys.readouterr()  # the export of the bundle, if this test is the first that needs it
    assert runtime(say) == 0 and capsys.readouterr().err.count("reference executor") == 1
    assert Bundle(bundles / "coreml").manifest.executed_by == "reference executor"


def test_teacher_forced_codes_equal_those_of_eager(bundles: Path, inputs: Path, tmp_path: Path) -> None:
    """In float32, only rounding differs from eager. Half precision changes the level of a few codes."""
    eager = traced(bundles / "coreml", inputs, tmp_path / "eager.npz", "--eager")
    exact = traced(bundles / "coreml", inputs, tmp_path / "float32.npz", "--compute-precision", "float32")
    np.testing.assert_array_equal(exact["codes"], eager["codes"])
    for name in ("prefill_hidden", "hidden", "semantic_logits", "audio"):
        bar = float32_bar(
            sums=30, products=256
        )  # the codec has the most: 4 layers and 6 convolutions; 1.2e-5
        assert np.abs(exact[name] - eager[name]).max() <= bar * np.abs(eager[name]).max(), name
    rounded = traced(bundles / "coreml", inputs, tmp_path / "float16.npz")
    bar = float16_bar(2 * 20)  # of two layers, 7.1e-3
    assert 0 < np.abs(rounded["hidden"] - eager["hidden"]).max() <= bar * np.abs(eager["hidden"]).max()
    # Velocities change as much, by a deviation of 1.8e-3. An FSQ level is 0.1 wide, so 1.8 % of the 444 codes
    # change: 8, with a deviation of 3. 4 deviations more are 4.5 %.
    assert (rounded["codes"] == eager["codes"]).mean() > 0.955


def test_verify_uses_the_given_precision(
    bundles: Path, short_verification: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(bundles / "coreml", "--compute-precision", "float32") == 0
    out = capsys.readouterr().out
    assert "outputs, float32" in out and "float16" not in out


def test_a_package_is_readable_by_other_users(bundles: Path) -> None:
    for part in (bundles / "coreml").rglob("*.mlpackage/**/*"):
        assert part.stat().st_mode & 0o044 == 0o044, part


def test_a_package_is_described(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runtime(["mil", str(bundles / "coreml" / "backbone.mlpackage"), "--function", "decode_step"]) == 0
    text = capsys.readouterr().out
    assert (
        "state     backbone_k_cache_0 fp16[1, 2, 1024, 32]" in text
        and "int4, constexpr_blockwise_shift_scale" in text
    )
    assert runtime(["mil", str(bundles / "coreml" / "backbone.mlpackage"), "--json"]) == 0
    functions = json.loads(capsys.readouterr().out)["functions"]
    assert set(functions) == {"prefill", "decode_step"}
    for function in functions.values():  # what becomes a code stays in single precision to its end
        assert function["operations"]["linear"] == {"count": 6, "results": {"fp16": 5, "fp32": 1}}
        assert function["operations"]["write_state"] == {"count": 2, "results": {}}  # keys and values
        assert len(function["compressed"]) == 5 and all(
            "held as int4" in kind for kind in function["compressed"].values()
        )


def test_functions_share_their_weights(bundles: Path) -> None:
    """The weight file holds at most 1.05 times the weights that one function needs."""
    bundle = Bundle(bundles / "coreml")
    from voxport.runtime.mil import Package
    from voxport.runtime.mil.program import Constant
    from voxport.runtime.mil.weights import Packed

    package = Package(bundle.folder / "backbone.mlpackage")
    values = [
        value
        for op in package.function("prefill").operations
        for listed in op.inputs.values()
        for value in listed
        if isinstance(value, Constant)
    ]
    arrays: dict[int, Any] = {
        value.value.ctypes.data: value
        for value in values
        if isinstance(value.value, np.ndarray) and value.value.size > 10
    }
    arrays |= {value.value.start: value for value in values if isinstance(value.value, Packed)}
    needed = sum(value.value.size * value.type.scalar.bits / 8 for value in arrays.values())
    assert (bundle.folder / "backbone.mlpackage" / WEIGHTS).stat().st_size <= 1.05 * needed


def test_functions_share_their_weights_in_memory_too(bundles: Path) -> None:
    from voxport.runtime.mil import Executor, Package

    package = Package(bundles / "coreml" / "backbone.mlpackage")
    first, second = (Executor(package.function(name), "float32") for name in ("prefill", "decode_step"))

    def large(executor: Executor) -> dict[int, int]:
        return {
            id(array): array.nbytes
            for array in executor._constants.values()
            if isinstance(array, np.ndarray) and array.size > 2000
        }

    assert large(first) == large(second) and sum(large(first).values()) > 600_000


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (
            "onnx",
            EngineOptions(compute_precision="float32"),
            "compute_precision applies to bundles for coreml",
        ),
        ("executorch", EngineOptions(compute_units="all"), "compute_units applies to bundles for coreml"),
        ("coreml", EngineOptions(compute_precision="bfloat16"), "expected one of float16, float32"),
    ],
)
def test_an_option_that_the_engine_does_not_have_is_refused(
    bundles: Path, target: str, options: EngineOptions, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        open_engine(Bundle(bundles / target), options)


@pytest.mark.skipif(sys.platform == "darwin", reason="on macOS the option is Core ML's")
def test_compute_units_need_core_ml(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="compute_units cpu: this system has no Core ML"):
        open_engine(Bundle(bundles / "coreml"), EngineOptions(compute_units="cpu"))
    assert isinstance(
        open_engine(Bundle(bundles / "coreml"), EngineOptions(compute_units="all")), ReferenceEngine
    )
    assert verify(bundles / "coreml", "--compute-units", "cpu") == 2
    assert "--compute-units cpu: verification uses no compute units here" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "darwin", reason="Core ML predicts on macOS alone")
def test_core_ml_and_the_executor_agree(bundles: Path, inputs: Path, tmp_path: Path) -> None:
    native = traced(bundles / "coreml", inputs, tmp_path / "native.npz", "--compute-units", "cpu")
    reference = traced(
        bundles / "coreml", inputs, tmp_path / "reference.npz", "--compute-precision", "float16"
    )
    for name in ("prefill_hidden", "hidden", "semantic_logits", "audio"):
        error = np.abs(native[name] - reference[name]).max()
        assert error <= FLOAT16_BAR * np.abs(reference[name]).max(), name
    stream = open_engine(Bundle(bundles / "coreml")).stream()
    states = {name: np.full_like(array, 0.5) for name, array in stream.save().items()}
    stream.load(states)
    assert all(np.array_equal(array, states[name]) for name, array in stream.save().items())


def test_a_precision_without_effect_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        export(["--target", "executorch", "--compute-precision", "float16", "--out", str(tmp_path / "out")])
        == 2
    )
    assert "executorch computes in float32" in capsys.readouterr().err and not list(tmp_path.iterdir())
