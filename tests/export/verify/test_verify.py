"""Verification finds each fault that is planted in a bundle."""

import json
import os
import shutil
from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.bundle_options import write_hashes
from support.export.faulty_engines import FaultyStream, StreamEngine

from voxport.bundle.manifest import MANIFEST, Bundle, WeightError
from voxport.export.__main__ import main as export
from voxport.export.verify import code_checks, comparison, run_checks
from voxport.export.verify.comparison import Comparison, Distance, measure, most_by_chance
from voxport.export.verify.manifest_check import check_weight_errors
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Arrays, EngineOptions, Stream


def verify(bundle: Path, *more: str) -> int:
    return export(["verify", str(bundle), "--steps", "20", *more])


def report(bundle: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((bundle / "verify.json").read_text())["rows"]
    return found


def edit_graph(bundle: Path, name: str, change: Callable[[onnx.GraphProto], None]) -> None:
    path = bundle / name
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    onnx.save(model, path)
    write_hashes(bundle, name)


def rename_output(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.output[:] = [new if name == old else name for name in node.output]
        node.input[:] = [new if name == old else name for name in node.input]


def offset_output(graph: onnx.GraphProto, name: str, amount: float) -> None:
    """`name` becomes `name + amount`."""
    rename_output(graph, name, f"{name}.before")
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([amount], np.float32), "fault"))
    graph.node.append(onnx.helper.make_node("Add", [f"{name}.before", "fault"], [name]))


@pytest.mark.slow
def test_a_bundle_passes_and_the_report_is_kept(
    onnx_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where weights have a second name, as in a folder that was copied with links."""
    os.link(onnx_copy / "backbone.onnx.data", tmp_path / "second name")
    assert verify(onnx_copy) == 0
    report = json.loads((onnx_copy / "verify.json").read_text())
    assert report["status"] == "passed" and all(row["passed"] for row in report["rows"])
    assert 0 < report["reports"]["codes, euler_steps 3 and 7"]["distance"] < 1
    assert "quantisation" in capsys.readouterr().out


def test_faults_in_three_graphs_are_each_found(onnx_copy: Path, short_verification: None) -> None:
    """A wrong second output, caches that are swapped, and a state that is not updated."""

    def swap(graph: onnx.GraphProto) -> None:
        for old, new in (
            ("present.k_cache_0", "x"),
            ("present.v_cache_0", "present.k_cache_0"),
            ("x", "present.v_cache_0"),
        ):
            rename_output(graph, old, new)

    def freeze(graph: onnx.GraphProto) -> None:
        rename_output(graph, "present.output", "unused")
        graph.node.append(onnx.helper.make_node("Identity", ["past.output"], ["present.output"]))

    edit_graph(onnx_copy, "acoustic_step.onnx", lambda graph: offset_output(graph, "velocity", 0.05))
    edit_graph(onnx_copy, "backbone.onnx", swap)
    edit_graph(onnx_copy, "codec.onnx", freeze)
    assert verify(onnx_copy) == 4
    failed = [row for row in report(onnx_copy) if not row["passed"]]
    assert {(row["component"], row["output"]) for row in failed if "output" in row} >= {
        ("acoustic_step", "velocity"),
        ("prefill", "states"),
        ("decode_step", "states"),
        ("codec_step", "states"),
    }


@pytest.mark.parametrize(
    ("target", "sampled"),
    [
        ("onnx", "1 seed, up to 24 rows, 4 decode steps, 8 frames in chunks, runs of 3, no long codes"),
        (
            "coreml",
            "1 seed, up to 24 rows, 0 decode steps, 4 frames in chunks, runs of 1, no replay, no free run, "
            "no long codes",
        ),
    ],
)
def test_a_large_model_is_checked_by_a_sample_and_the_report_says_it(
    bundles: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    sampled: str,
) -> None:
    """The limit for references is 0 bytes, so every model counts as large."""
    monkeypatch.setattr("voxport.export.resolve.MAX_REFERENCE_BYTES", 0)
    assert verify(bundles / target, "--details") == 0
    out = capsys.readouterr().out
    assert f"{sampled}; not compared with full precision" in out and ("reset and replay" in out) == (
        target == "onnx"
    )
    # the reference executor: float32 finds what the rounding of float16 hides
    assert ("outputs, float32" in out) == ("outputs, float16" in out) == (target == "coreml")


def test_a_fault_is_found_in_a_sample_too(
    onnx_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("voxport.export.resolve.MAX_REFERENCE_BYTES", 0)
    edit_graph(onnx_copy, "acoustic_step.onnx", lambda graph: offset_output(graph, "next_x", 0.05))
    assert verify(onnx_copy) == 4
    assert "next_x" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["onnx", "executorch"])
def test_a_gain_of_half_of_the_channels_is_found_in_a_sample(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """In each output of the acoustic head, 6 % in half of the channels: 0.06 / √2 of its 2-norm. A sample has
    too few calls for a share of them, so the distance or the gain finds it.
    """
    gained = {("acoustic_step", "next_x"), ("acoustic_step", "velocity")}

    def gain(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        for component, output in gained:
            if component == name:
                outputs[output][..., : outputs[output].shape[-1] // 2] *= np.float32(1.06)

    def open_faulty(bundle: Bundle, options: EngineOptions) -> StreamEngine:
        engine = open_engine(bundle, options)
        return StreamEngine(lambda: FaultyStream(engine.stream(), gain), engine.batched)

    copy = shutil.copytree(bundles / target, tmp_path / "bundle")
    monkeypatch.setattr("voxport.export.resolve.MAX_REFERENCE_BYTES", 0)
    monkeypatch.setattr("voxport.export.verify.run.open_engine", open_faulty)
    assert verify(copy) == 4
    failed = [row for row in report(copy) if "output" in row and not row["passed"]]
    assert {(row["component"], row["output"]) for row in failed} == gained


def test_a_changed_weight_fails(
    onnx_copy: Path, short_verification: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The low nibbles of one quantised weight become 0. The change is small, but affects every product."""
    model = onnx.load(onnx_copy / "backbone.onnx", load_external_data=False)
    packed = next(i for i in model.graph.initializer if i.name.endswith(".packed"))
    place = {entry.key: entry.value for entry in packed.external_data}
    content = bytearray((onnx_copy / "backbone.onnx.data").read_bytes())
    start, length = int(place["offset"]), int(place["length"])
    content[start : start + length] = bytes(byte ^ 1 for byte in content[start : start + length])
    (onnx_copy / "backbone.onnx.data").write_bytes(content)
    assert verify(onnx_copy) == 5  # the hash
    write_hashes(onnx_copy, "backbone.onnx.data")
    assert verify(onnx_copy) == 4  # the numbers
    assert "hidden" in capsys.readouterr().err


def test_what_is_too_small_for_any_output_is_read_back(onnx_copy: Path, short_verification: None) -> None:
    """One scale is 2 % larger. In another graph, float activations replace integer ones: they are nearer to
    eager than the bar of rounding.
    """

    def float_activations(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 1

    model = onnx.load(onnx_copy / "backbone.onnx", load_external_data=False)
    node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    scale = next(entry for entry in model.graph.initializer if entry.name == node.input[2])
    place = {entry.key: entry.value for entry in scale.external_data}
    weights = onnx_copy / "backbone.onnx.data"
    content = np.fromfile(weights, np.float32)
    content[int(place["offset"]) // 4] *= 1.02
    content.tofile(weights)
    write_hashes(onnx_copy, weights.name)
    edit_graph(onnx_copy, "acoustic_step.onnx", float_activations)
    assert verify(onnx_copy) == 4
    failed = [row for row in report(onnx_copy) if not row["passed"]]
    found = {row["check"]: row["detail"] for row in failed if "detail" in row}
    assert "no linear has the integers and scales of layers.0.attention" in found["backbone"]
    assert "accuracy_level 1, expected 4" in found["acoustic_step"]


def test_a_changed_weight_error_in_the_manifest_fails(
    onnx_copy: Path, short_verification: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tool that changed it also knows the hashes, which do not cover the manifest."""
    path = onnx_copy / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["weight_errors"]["backbone"]["searched"] *= 1.001
    path.write_text(json.dumps(manifest))
    assert verify(onnx_copy) == 4
    (failed,) = [row for row in report(onnx_copy) if not row["passed"]]
    assert failed["check"] == "weight error of backbone" and "weight_errors.backbone" in failed["detail"]


@pytest.mark.parametrize("field", ["searched", "min_max"])
def test_weight_errors_may_differ_by_the_order_of_sums_only(field: str) -> None:
    measured = {"backbone": WeightError(searched=0.08, min_max=0.09)}

    def failed(stored: dict[str, WeightError]) -> list[str]:
        return [check.name for check in check_weight_errors(stored, measured)]

    value = getattr(measured["backbone"], field)
    for factor, is_close in ((1 + 2e-5, True), (1 + 2e-4, False), (0, False), (float("nan"), False)):
        stored = {"backbone": measured["backbone"].model_copy(update={field: value * factor})}
        assert failed(stored) == ([] if is_close else ["weight error of backbone"])
    assert failed({}) == ["weight error of backbone"]
    assert failed(measured | {"codec": measured["backbone"]}) == ["weight error of codec"]


def test_nan_on_both_sides_is_not_equal() -> None:
    nan = np.array([1.0, np.nan])
    assert measure(nan, nan).largest == float("inf")


ONES = np.ones(4)


def compare_ones(integer: bool, *errors: float, rounding: float = 0.0, perturbed: float = 0.0) -> Comparison:
    """A comparison with a call for each error of all values, and eager as far from itself as given."""
    compared = Comparison("c", "o", "check", integer)
    for error in errors:
        others = (ONES + rounding, ONES + perturbed) if integer else ()
        compared.add(ONES + error, ONES, *others)
    return compared


@pytest.mark.parametrize("integer", [False, True])
def test_a_comparison_without_a_call_fails(integer: bool) -> None:
    empty = Comparison("c", "o", "check", integer)
    assert not empty.passed and json.loads(json.dumps(empty.row()))["lowering_error"] is None


def test_the_numbers_that_bars_are_made_of_are_those_of_the_documentation() -> None:
    """Faults of the other tests have fixed sizes, so a larger bar hides them."""
    assert (comparison.FLOAT_BAR, comparison.FLOAT16_BAR) == (1e-4, 2e-2)
    assert (comparison.ROUNDING_FACTOR, comparison.RARE, comparison.FEW_TIES) == (2, 1e-3, 0.25)
    assert pytest.approx(0.0447, abs=1e-4) == comparison.FLOAT16_DISTANCE_BAR  # a correlation of 0.999
    assert run_checks.GROWTH == 7
    assert (code_checks.FLOAT_DEVIATIONS, code_checks.NEAREST, code_checks.MOST_STEPS) == (3, 16, 0.9)
    assert code_checks.GROSS_FACTOR == 10


def test_with_float_activations_no_call_may_exceed_one_ten_thousandth() -> None:
    assert compare_ones(False, *[0.9e-4] * 10).passed
    assert not compare_ones(False, *[0.0] * 9, 1.1e-4).passed


def test_with_integer_activations_no_call_may_exceed_twice_the_effect_of_rounding() -> None:
    assert compare_ones(True, *[0.0] * 99, 1.9e-3, rounding=1e-3).passed
    assert not compare_ones(True, *[0.0] * 99, 2.1e-3, rounding=1e-3).passed
    # rounding that changes nothing leaves the bar of floats
    assert compare_ones(True, *[0.9e-4] * 10).passed
    assert not compare_ones(True, *[0.0] * 99, 1.1e-4).passed


def test_an_error_in_every_call_fails_where_eager_meets_few_ties() -> None:
    errors = [1.1e-4] * 48
    assert not compare_ones(True, *errors, rounding=1e-2).passed
    assert compare_ones(True, *errors, rounding=1e-2, perturbed=1e-3).passed  # each call may meet a tie
    # of 48 fair coins, more than 35 show heads with a probability of 4e-4, more than 34 with 1.4e-3
    assert compare_ones(True, *errors, rounding=1e-2).beyond_allowed == 35 / 48


def binomial(calls: int, probability: float) -> list[float]:
    return [
        comb(calls, count) * probability**count * (1 - probability) ** (calls - count)
        for count in range(calls + 1)
    ]


@pytest.mark.parametrize("calls", [8, 24, 100])
def test_the_fraction_of_calls_fails_one_right_artifact_in_a_hundred_thousand(calls: int) -> None:
    """At most, whatever the probability of a tie. Both sides meet ties independently of each other."""
    tie, none = Distance(1e-3, 1e-3, 1e-3), Distance(0.0, 0.0, 0.0)
    perturbed = [[tie] * ties + [none] * (calls - ties) for ties in range(calls + 1)]
    rows = [Comparison("c", "o", "check", True, calls=row, perturbed=row) for row in perturbed]
    allowed = [round(calls * row.beyond_allowed) for row in rows]
    for probability in np.linspace(0, 1, 101):
        chances = binomial(calls, probability)
        failed = sum(chances[ties] * sum(chances[allowed[ties] + 1 :]) for ties in range(calls + 1))
        assert failed <= 1e-5


def test_what_chance_explains_is_the_tail_of_a_binomial_distribution() -> None:
    for calls, probability in [(4, 0.5), (24, 0.71), (100, 0.8), (48, 0.02)]:
        allowed = most_by_chance([probability] * calls)
        chances = binomial(calls, probability)
        assert sum(chances[allowed + 1 :]) <= 1e-3 < sum(chances[allowed:])
    assert most_by_chance([1.0] * 24) == 24 and most_by_chance([0.0] * 24) == most_by_chance([]) == 0
    assert 2606 <= most_by_chance([0.5] * 5000) <= 2612  # 3.09 standard deviations of 35.4 above 2,500


def test_the_wrong_checkpoint_is_refused(
    onnx_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from voxport.model.synthetic.checkpoint import write_checkpoint

    write_checkpoint(tmp_path / "other", "tiny", seed=1)
    assert export(["verify", str(onnx_copy), "--checkpoint", str(tmp_path / "other")]) == 2
    assert "consolidated.safetensors is not the file" in capsys.readouterr().err
