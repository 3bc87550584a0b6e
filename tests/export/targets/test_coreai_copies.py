"""Verification of Core AI assets: copies in two precisions, the stored program, and faults that they find."""

import gc
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import failed
from support.model.micro import micro_checkpoint

from voxport.bundle.errors import ExportError, IntegrityError
from voxport.bundle.manifest import SCHEMA_VERSION, Bundle, ExportRequest, Manifest, Precision, file_entry
from voxport.export.job import make_job
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets.apple import OneHotAttention
from voxport.export.targets.base import Graph
from voxport.export.targets.coreai import copies, half, lowering
from voxport.export.targets.coreai.target import CoreAITarget
from voxport.export.targets.coreai.tools import AIModelAsset, Context
from voxport.export.targets.coreai.weights import StoredWeights
from voxport.export.verify.checks import verify
from voxport.export.verify.comparison import FLOAT16_BAR, FLOAT_BAR, Comparison, Result, measure
from voxport.export.verify.component_checks import check_components
from voxport.export.verify.context import open_context
from voxport.export.verify.modes import DEFAULTS, Extent, Mode
from voxport.runtime.engines.base import EngineOptions

FEW = Extent(seeds=(0, 1), sizes=(1, 5))
Made = tuple[Bundle, Model, CoreAITarget]


def make(
    checkpoint: Path, folder: Path, quant: str, *graphs: str, target: CoreAITarget | None = None
) -> Made:
    """A bundle of some graphs, unverified."""
    target = target or CoreAITarget()
    resolved = resolve(Source(checkpoint), ExportRequest(quant=quant, cache_length=64))
    job = make_job(resolved, target, "test")
    model = Model(resolved, target.layout, job.compute_precision)
    for name in graphs:
        target.lower(model.graph(name), folder)
    entries = tuple(entry for entry in job.components if entry.graph in graphs)
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        job=job.model_copy(update={"components": entries}),
        files={str(path.relative_to(folder)): file_entry(path) for path in files},
        tokenizer=(),
        voices={},
        weight_errors={},
    )
    return Bundle(folder, manifest), model, target


def check(made: Made, precision: str, graph: str) -> list[Result]:
    mode = Mode(DEFAULTS, precision, FEW, counts_ties=False)
    return list(check_components(open_context(*made, mode, graph)))


def worst(results: list[Result]) -> float:
    return max(result.worst for result in results if isinstance(result, Comparison))


@pytest.fixture(scope="module")
def backbone(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(checkpoint, tmp_path_factory.mktemp("backbone"), "w4", "backbone")


@pytest.mark.parametrize("quant", ["w8", "lut4", "8da4w"])
def test_copies_with_decoded_weights_equal_eager(checkpoint: Path, tmp_path: Path, quant: str) -> None:
    made = make(checkpoint, tmp_path, quant, "backbone")
    found = {precision: check(made, precision, "backbone") for precision in ("float32", "float16")}
    assert not failed(found["float32"]) and not failed(found["float16"])
    assert worst(found["float32"]) < FLOAT_BAR < worst(found["float16"]) < FLOAT16_BAR


def test_large_copies_keep_the_stored_weights(backbone: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "DECODED_BYTES", 0)
    assert not failed(check(backbone, "float32", "backbone"))
    assert not failed(check(backbone, "float16", "backbone"))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_no_product_of_a_copy_has_float16_sums_or_a_stored_weight(
    backbone: Made, tmp_path: Path, precision: Precision
) -> None:
    asset = backbone[0].folder / "backbone.aimodel"
    copies.write_copy(asset, tmp_path / asset.name, precision)
    for path, expected in ((asset, True), (tmp_path / asset.name, False)):
        with Context():
            lines = str(AIModelAsset.load(path).program).splitlines()
        products = [line for line in lines if "broadcasting_batch_matmul" in line]
        assert products and any(line.endswith("f16>") for line in products) == expected
        assert any("blockwise_shift_scale" in line for line in lines) == expected
        if path != asset:
            assert any(re.search("[x<]f16>", line) for line in lines) == (precision == "float16")


def test_stored_programs_are_summed_in_float16_within_their_own_bar(backbone: Made) -> None:
    exact, stored = (check(backbone, precision, "backbone") for precision in ("float16", "stored"))
    assert not failed(stored) and worst(stored) > 2 * worst(exact)
    bars = {result.float_bar for result in stored if isinstance(result, Comparison)}
    assert len(bars) == 1 and FLOAT16_BAR < bars.pop() < 2 * FLOAT16_BAR


def test_copies_are_removed_with_their_engine(
    backbone: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bundle, _, target = backbone
    engine = target.open_artifacts(bundle, EngineOptions(compute_precision="float32"))
    assert [path.name for path in tmp_path.glob("voxport-*/*")] == ["backbone.aimodel"]
    del engine
    gc.collect()
    assert not list(tmp_path.glob("voxport-*"))


def test_a_damaged_asset_behind_right_hashes_is_found_before_it_is_read(
    backbone: Made, tmp_path: Path
) -> None:
    """Reading it would end this process."""
    bundle, model, target = backbone
    copy = Path(shutil.copytree(bundle.folder, tmp_path / "bundle"))
    program = copy / "backbone.aimodel" / lowering.PROGRAM
    program.write_bytes(program.read_bytes()[:4000])
    (program.parent / lowering.HASH).write_bytes(bytes.fromhex(file_entry(program).sha256))
    names = (path.relative_to(copy).as_posix() for path in program.parent.iterdir())
    files = {name: file_entry(copy / name) for name in names}
    manifest = bundle.manifest.model_copy(update={"files": bundle.manifest.files | files})
    with pytest.raises(IntegrityError, match=r"backbone\.aimodel: Core AI cannot parse it \(exit code -6\)"):
        verify(Bundle(copy, manifest), model, target, DEFAULTS)
    target.check_files(bundle)


def test_a_float32_program_runs_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    target = CoreAITarget("float32")
    made = make(checkpoint, tmp_path, "w4", "backbone", target=target)
    assert target.verification_precisions == ("float32",) and target.state_dtype("float32") == "float32"
    engine = target.open_artifacts(made[0], EngineOptions(compute_precision="float32"))
    assert vars(engine)["bundle"].folder == tmp_path
    assert not failed(check(made, "float32", "backbone"))


def forget_keys(attention: Callable[..., Any]) -> Callable[..., Any]:
    def update(self: Any, new: Any, cache: Any, update: Any) -> Any:
        out, _, v = attention(self, new, cache, update)
        return out, cache.k * 1.0, v

    return update


def test_a_state_that_is_not_written_is_found(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = forget_keys(OneHotAttention.sliding_window)
    monkeypatch.setattr(OneHotAttention, "sliding_window", fault)
    made = make(checkpoint, tmp_path, "w8", "backbone")
    assert {"prefill.states", "decode_step.states"} <= set(failed(check(made, "float32", "backbone")))


def test_a_function_that_reads_the_copy_of_another_weight_is_found(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(StoredWeights):
        """The second function has a copy of its own of one weight, with the rows in another order."""

        made = 0

        def _constant(self, name: str, make: Callable[[], Any], *type_: Any) -> Any:
            self.made += name == "layers.0.attention.wo.integers"
            if name == "layers.0.attention.wo.integers" and self.made == 2:
                return super()._constant(f"{name}.copy", lambda: np.roll(make(), make().size // 2), *type_)
            return super()._constant(name, make, *type_)

    monkeypatch.setattr(lowering, "StoredWeights", Wrong)
    made = make(checkpoint, tmp_path, "w4", "backbone")
    found = failed(check(made, "float32", "backbone"))
    assert "decode_step.hidden" in found and "prefill.hidden" not in found


def test_norms_in_half_precision_are_found(
    backbone: Made, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The squares of large values overflow."""

    def error(made: Made) -> float:
        engines = open_context(*made, Mode(DEFAULTS, "float16", FEW, counts_ties=False)).engines
        example = next(part for part in made[1].components if part.name == "decode_step").example(0)
        inputs = {**example, "embeddings": 1000 * example["embeddings"]}
        streams = engines.artifact.stream(), engines.eager.stream()
        return measure(*(stream.run("decode_step", inputs)["hidden"] for stream in streams)).largest

    assert error(backbone) < FLOAT16_BAR
    monkeypatch.setattr(half, "norms", lambda graph: set())
    assert error(make(checkpoint, tmp_path, "w4", "backbone")) > 0.5


@pytest.mark.parametrize("rule", ["norms", "last_products"])
def test_half_precision_in_a_norm_or_a_last_product_is_found_by_read_back(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    monkeypatch.setattr(half, rule, lambda _: set())
    _, model, target = make(checkpoint, tmp_path, "w8", "backbone")
    with pytest.raises(ExportError, match=r"precision of norms and last products: found \{'f16'\}"):
        target.check(model.graph("backbone"), tmp_path)


def test_half_precision_in_a_graph_that_exceeds_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, name = micro_checkpoint("qwen3_tts"), "code_predictor"
    made = make(checkpoint, tmp_path / "right", "w8", name)
    assert not failed(check(made, "float16", name)) and not failed(check(made, "stored", name))
    lower = CoreAITarget.lower

    def in_half(self: CoreAITarget, graph: Graph, folder: Path) -> None:
        lower(self, replace(graph, exceeds_float16=False), folder)

    monkeypatch.setattr(CoreAITarget, "lower", in_half)
    made = make(checkpoint, tmp_path / "wrong", "w8", name)
    assert failed(check(made, "float16", name))
