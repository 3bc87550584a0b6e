"""Verification finds faults that are planted in a bundle: by the command, and by its checks in process."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.bundle_options import edit_manifest, write_hashes
from support.export.faulty_engines import FaultyStream, failed, no_fault, with_artifact

from voxport.bundle.manifest import Bundle, ExportRequest
from voxport.export.__main__ import main as export
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target, target_of_job
from voxport.export.targets.base import Target
from voxport.export.verify.checks import CHECKS, verify_graph
from voxport.export.verify.comparison import Assertion
from voxport.export.verify.component_checks import check_components
from voxport.export.verify.context import open_context
from voxport.export.verify.modes import DEFAULTS, SAMPLE, modes
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.runtime.engines.base import Arrays, Stream


def verify(bundle: Path, *more: str) -> int:
    return export(["verify", str(bundle), "--steps", "20", *more])


def report(bundle: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((bundle / "verify.json").read_text())["rows"]
    return found


def opened(folder: Path, checkpoint: Path) -> tuple[Bundle, Model, Target]:
    bundle = Bundle(folder)
    resolved = resolve(Source(checkpoint), bundle.job.request)
    target = target_of_job(bundle.job)
    return bundle, Model(resolved, target.layout, bundle.job.compute_precision), target


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
    """Also if weights have a second name, as in a folder that was copied with links."""
    os.link(onnx_copy / "backbone.onnx.data", tmp_path / "second name")
    assert verify(onnx_copy) == 0
    report = json.loads((onnx_copy / "verify.json").read_text())
    assert report["status"] == "passed" and all(row["passed"] for row in report["rows"])
    assert 0 < report["reports"]["codes, euler_steps 3 and 7"]["distance"] < 1
    assert "quantisation" in capsys.readouterr().out


def test_faults_in_three_graphs_and_in_the_manifest_are_each_found(
    onnx_copy: Path, short_verification: None
) -> None:
    """A wrong second output, caches that are swapped, a state that is not updated, a changed weight error."""

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

    def change_weight_error(manifest: Any) -> None:
        manifest["weight_errors"]["backbone"]["searched"] *= 1.001

    edit_graph(onnx_copy, "acoustic_step.onnx", lambda graph: offset_output(graph, "velocity", 0.05))
    edit_graph(onnx_copy, "backbone.onnx", swap)
    edit_graph(onnx_copy, "codec.onnx", freeze)
    edit_manifest(onnx_copy, change_weight_error)
    assert verify(onnx_copy) == 4
    failed = [row for row in report(onnx_copy) if not row["passed"]]
    assert {(row["component"], row["output"]) for row in failed if "output" in row} >= {
        ("acoustic_step", "velocity"),
        ("prefill", "states"),
        ("decode_step", "states"),
        ("codec_step", "states"),
    }
    assert "weight error of backbone" in {row["check"] for row in failed}


ALL = ["long run", "last positions", "replay", "batches", "streaming", "codes", "free run"]
FLOATS = ["long run", "last positions", "batches", "streaming", "codes"]


@pytest.mark.parametrize(
    ("target", "is_large", "found"),
    [
        ("onnx", False, {", float activations": FLOATS, "": ["components", *ALL, "long codes"]}),
        ("executorch", False, {"": [*ALL, "long codes"]}),
        ("coreml", False, {", float32": [*ALL, "long codes"], ", float16": ["components", *ALL]}),
        ("onnx", True, {", float activations": FLOATS, "": ["components", *ALL]}),
        ("coreml", True, {", float32": FLOATS, ", float16": ["components", *FLOATS]}),
    ],
)
def test_the_checks_of_each_mode(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    is_large: bool,
    found: dict[str, list[str]],
) -> None:
    """`verify_graph` checks the components in the first mode. Core ML runs in the reference executor here."""
    if is_large:
        monkeypatch.setattr("voxport.export.resolve.MAX_REFERENCE_BYTES", 0)
    resolved = resolve(Source(checkpoint), ExportRequest(quant="w4"))
    done = modes(resolved, open_target(target), DEFAULTS)
    applied = {mode.suffix: [check.name for check in CHECKS if check.applies(mode)] for mode in done}
    assert applied == found
    assert [mode.extent.is_sample for mode in done] == [is_large] * len(done)
    assert [mode.extent.steps for mode in done[1:]] == [min(200, mode.extent.steps) for mode in done[1:]]


@pytest.mark.slow
def test_a_large_model_is_checked_by_a_sample_and_the_report_says_it(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit for references is 0 bytes, so every model counts as large."""
    monkeypatch.setattr("voxport.export.resolve.MAX_REFERENCE_BYTES", 0)
    assert verify(bundles / "onnx", "--json") == 0
    out = capsys.readouterr().out
    sampled = "1 seed, up to 24 rows, 4 decode steps, 8 frames in chunks, runs of 3, no long codes"
    assert f"{sampled}; not compared with full precision" in out and "reset and replay" in out


@pytest.mark.parametrize("target", ["onnx", "executorch"])
def test_a_gain_of_half_of_the_channels_is_found_in_a_sample(
    bundles: Path, checkpoint: Path, target: str
) -> None:
    """In each output of the acoustic head, 6 % in half of the channels: 0.06 / √2 of its 2-norm. A sample has
    too few calls for a share of them, so the distance or the gain finds it.
    """
    gained = {("acoustic_step", "next_x"), ("acoustic_step", "velocity")}

    def gain(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        for component, output in gained:
            if component == name:
                outputs[output][..., : outputs[output].shape[-1] // 2] *= np.float32(1.06)

    bundle, model, lowered = opened(bundles / target, checkpoint)
    mode = replace(modes(model.resolved, lowered, DEFAULTS)[-1], extent=SAMPLE, counts_ties=False)
    context = open_context(bundle, model, lowered, mode, "acoustic_step")
    artifact = context.engines.artifact
    for fault, found in ((no_fault, []), (gain, ["acoustic_step.next_x", "acoustic_step.velocity"])):
        faulty = with_artifact(context, partial(FaultyStream, artifact.stream(), fault))
        assert sorted(failed(check_components(faulty))) == found


def test_a_changed_weight_fails(onnx_copy: Path, checkpoint: Path, short_verification: None) -> None:
    """The low nibbles of one quantised weight become 0. The change is small, but affects every product."""
    model = onnx.load(onnx_copy / "backbone.onnx", load_external_data=False)
    packed = next(i for i in model.graph.initializer if i.name.endswith(".packed"))
    place = {entry.key: entry.value for entry in packed.external_data}
    content = bytearray((onnx_copy / "backbone.onnx.data").read_bytes())
    start, length = int(place["offset"]), int(place["length"])
    content[start : start + length] = bytes(byte ^ 1 for byte in content[start : start + length])
    (onnx_copy / "backbone.onnx.data").write_bytes(content)
    assert verify(onnx_copy) == 5  # the hash
    found = failed(verify_graph(*opened(onnx_copy, checkpoint), "backbone"))
    assert {"backbone", "prefill.hidden", "decode_step.hidden"} <= {name.partition(",")[0] for name in found}


def test_what_is_too_small_for_any_output_is_read_back(
    onnx_copy: Path, checkpoint: Path, short_verification: None
) -> None:
    """One scale is 2 % larger. In another graph, float activations replace integer ones: they are nearer to
    eager than the bar of rounding.
    """

    def float_activations(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 1

    proto = onnx.load(onnx_copy / "backbone.onnx", load_external_data=False)
    node = next(node for node in proto.graph.node if node.op_type == "MatMulNBits")
    scale = next(entry for entry in proto.graph.initializer if entry.name == node.input[2])
    place = {entry.key: entry.value for entry in scale.external_data}
    weights = onnx_copy / "backbone.onnx.data"
    content = np.fromfile(weights, np.float32)
    content[int(place["offset"]) // 4] *= 1.02
    content.tofile(weights)
    edit_graph(onnx_copy, "acoustic_step.onnx", float_activations)
    bundle, model, target = opened(onnx_copy, checkpoint)
    for graph, found in (
        ("backbone", "no linear has the integers and scales of layers.0.attention"),
        ("acoustic_step", "accuracy_level 1, expected 4"),
    ):
        results = verify_graph(bundle, model, target, graph)
        wrong = [each for each in results if isinstance(each, Assertion) and not each.passed]
        assert [each.name for each in wrong] == [graph] and found in wrong[0].detail


def test_the_wrong_checkpoint_is_refused(
    onnx_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "other", "tiny", seed=1)
    assert export(["verify", str(onnx_copy), "--checkpoint", str(tmp_path / "other")]) == 2
    assert "consolidated.safetensors is not the file" in capsys.readouterr().err
