"""ONNX graphs in float16, which CUDA needs: they match eager on the processor, from any memory for states."""

from pathlib import Path

import numpy as np
import pytest
from support.export.faulty_engines import failed
from support.runtime.host_device import HostDevice

import voxport.runtime.engines.onnx
from voxport.bundle.manifest import SCHEMA_VERSION, Bundle, ExportRequest, Manifest, file_entry
from voxport.export.job import make_job
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.export.targets.base import Target
from voxport.export.verify.checks import verify_graph
from voxport.export.verify.comparison import FLOAT16_BAR, Comparison
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Engine, EngineOptions

GRAPHS = ("backbone", "codec")  # with caches, and with other states
Made = tuple[Bundle, Model, Target]


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A bundle of two graphs."""
    folder, target = tmp_path_factory.mktemp("float16"), open_target("onnx", "float16")
    resolved = resolve(
        Source(checkpoint), ExportRequest(quant="w4", quant_for=(("codec", "w8"),), cache_length=64)
    )
    job = make_job(resolved, target, "test")
    model = Model(resolved, target.layout, job.compute_precision)
    for graph in GRAPHS:
        target.lower(model.graph(graph), folder)
    entries = tuple(entry for entry in job.components if entry.graph in GRAPHS)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        job=job.model_copy(update={"components": entries}),
        files={path.name: file_entry(path) for path in folder.iterdir()},
        tokenizer=(),
        voices={},
        weight_errors={},
    )
    return Bundle(folder, manifest), model, target


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_matches_eager_in_half_precision(made: Made, graph: str) -> None:
    results = verify_graph(*made, graph)
    assert not failed(results)
    compared = [result for result in results if isinstance(result, Comparison)]
    assert compared and all(result.float_bar == FLOAT16_BAR for result in compared)
    # no integer activations, and not float32: values are rounded to 2^-11 of themselves
    assert all(max(call.norm for call in result.calls) > 1e-5 for result in compared)


def run(engine: Engine) -> list[np.ndarray]:
    """Outputs and states of calls of one stream, and of two slots."""
    noise, found = np.random.default_rng(0), list[np.ndarray]()
    batch = engine.batched(2)
    streams = [engine.stream(), batch.slot(1), batch]
    dim = int(streams[0].signatures["prefill"].inputs[0].shape[-1])
    codes = int(streams[0].signatures["codec_step"].inputs[0].shape[-1])
    for stream in streams[:2]:
        for position, rows in ((0, 5), (5, 2)):
            embeddings = noise.standard_normal((1, rows, dim), dtype=np.float32)
            inputs = {"embeddings": embeddings, "position": np.array([position])}
            found += stream.run("prefill", inputs).values()
            inputs = {"codes": noise.integers(2, 20, (1, 2, codes)), "position": np.array([position])}
            found += stream.run("codec_step", inputs).values()
    batch.slot(0).load(streams[0].save(positions=6))
    embeddings = noise.standard_normal((2, 1, dim), dtype=np.float32)
    found += batch.run("decode_step", {"embeddings": embeddings, "position": np.array([6, 7])}).values()
    streams[0].load(streams[1].save())
    inputs = {"embeddings": embeddings[:1], "position": np.array([7])}
    found += streams[0].run("decode_step", inputs).values()
    streams[1].reset()
    return found + [array for stream in streams for array in stream.save().values()]


def test_states_on_a_device_give_the_same_values(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is the host here. The calls of CUDA's library are not tested here."""
    expected, device = run(open_engine(made[0], EngineOptions(device="cpu"))), HostDevice()
    monkeypatch.setattr(voxport.runtime.engines.onnx, "open_device", lambda job, name: device)
    found = run(open_engine(made[0]))
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert device.allocations > 0
