"""`voxport triton`: what it writes, what it refuses, and what Triton's rules compute with it."""

import os
import re
import shutil
import subprocess
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.bundle_options import edit_manifest
from support.runtime.triton import Model, Request, RequestError, TritonEngine, data_type, read_config

from bundle.manifest import Bundle
from bundle.spec import ONNX_PAST, ONNX_PRESENT
from export.targets.onnx.float_activations import ACCURACY_LEVEL, FLOAT32
from runtime.__main__ import main as runtime
from runtime.engines import open_engine
from runtime.engines.base import Arrays, EngineOptions
from runtime.families import open_family, read_constants
from runtime.triton.config import Serving
from runtime.triton.repository import write_repository

pytestmark = pytest.mark.slow  # needs bundles
FRAMES = 4


@pytest.fixture(scope="module")
def bundle(bundles: Path) -> Bundle:
    return Bundle(bundles / "onnx")


@pytest.fixture(scope="module")
def repository(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("triton") / "models"
    write_repository(bundle.folder, out)
    return out


def test_every_graph_is_a_model_with_its_weights(bundle: Bundle, repository: Path) -> None:
    graphs = {entry.graph: entry.file for entry in bundle.components}
    assert {folder.name for folder in repository.iterdir()} == set(graphs)
    for name, file in graphs.items():
        found = {path.name for path in (repository / name / "1").iterdir()}
        assert found == {"model.onnx", f"{file}.data"}
        assert (repository / name / "1" / "model.onnx").read_bytes() == (bundle.folder / file).read_bytes()


def test_states_are_those_of_the_manifest(bundle: Bundle, repository: Path) -> None:
    """Triton finds neither a wrong type nor wrong sizes of a state."""
    for entry in bundle.components:
        config = read_config(repository / entry.graph)
        found = {}
        for state in config.sequence_batching.state:
            dims = [1, *state.dims] if config.max_batch_size else list(state.dims)
            found[state.input_name, state.output_name] = (data_type(state), dims)
        assert found == {
            (ONNX_PAST + state.name, ONNX_PRESENT + state.name): ("float32", list(state.shape))
            for state in entry.signature.states
        }


def test_graphs_with_a_batch_axis_are_those_that_have_a_batch(repository: Path) -> None:
    """`Model` compares each configuration with its graph."""
    models = [Model(folder) for folder in repository.iterdir()]
    assert {model.config.name for model in models if model.config.max_batch_size} == {
        "embed_codes",
        "backbone",
        "acoustic_step",
    }


def test_a_sequence_gives_the_codes_and_the_speech_of_the_bundle(bundle: Bundle, repository: Path) -> None:
    family, constants = open_family(bundle.job.family), read_constants(bundle.job)
    engine = open_engine(bundle, EngineOptions(threads=1))
    triton = TritonEngine(repository, bundle)
    for _ in range(2):  # a second sequence does not see the states of the first
        expected = family.verification.teacher_forced_run(engine.stream(), constants, FRAMES, None)
        found = family.verification.teacher_forced_run(triton.stream(), constants, FRAMES, None)
        assert (found.codes == expected.codes).all() and len(found.codes) == FRAMES
        np.testing.assert_array_equal(found.logits, expected.logits)
    speech = family.verification.free_run(triton.stream(), constants, FRAMES)
    np.testing.assert_array_equal(speech, family.verification.free_run(engine.stream(), constants, FRAMES))
    assert np.abs(speech).max() > 0


def use_float_activations(path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    levels = [
        attribute
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
        for attribute in node.attribute
        if attribute.name == ACCURACY_LEVEL
    ]
    assert levels
    for level in levels:
        level.i = FLOAT32
    onnx.save(model, path)


def test_sequences_of_one_batch_have_their_own_states(bundle: Bundle, tmp_path: Path) -> None:
    """Each row of a batch is what it is alone, to float addition order: 1e-4 of the largest value.

    With float activations: kernels may sum a batch in another order, which moves integer activations at ties.
    """
    write_repository(bundle.folder, tmp_path / "models", ["backbone"], Serving(batch=2))
    use_float_activations(tmp_path / "models" / "backbone" / "1" / "model.onnx")
    generator = np.random.default_rng(3)
    dim = read_config(tmp_path / "models" / "backbone").input[0].dims[-1]
    rows = generator.standard_normal((6, 2, 1, 1, dim), dtype=np.float32)

    def request(step: int, sequence: int, first: int) -> Request:
        position = np.array([[step - first]])
        inputs = {"embeddings": rows[step, sequence], "position": position}
        return Request(inputs, sequence + 1, start=step == first)

    alone = [list[Arrays](), list[Arrays]()]
    for sequence, first in ((0, 0), (1, 2)):  # the second joins later
        model = Model(tmp_path / "models" / "backbone")
        for step in range(first, 6):
            alone[sequence] += model.infer([request(step, sequence, first)])
    model, together = Model(tmp_path / "models" / "backbone"), [list[Arrays](), list[Arrays]()]
    for step in range(6):
        batch = [request(step, 0, 0), request(step, 1, 2)][: 1 + (step >= 2)]
        for sequence, outputs in enumerate(model.infer(batch)):
            together[sequence].append(outputs)
    for found, expected in zip(chain(*together), chain(*alone), strict=True):
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=1e-4 * np.abs(values).max())


def test_a_request_that_the_configuration_does_not_describe_is_refused(repository: Path) -> None:
    model = Model(repository / "backbone")
    dim = model.config.input[0].dims[-1]
    inputs = {"embeddings": np.zeros((1, 2, dim), np.float32), "position": np.zeros((1, 1), np.int64)}
    for wrong in (
        Request(inputs),  # no sequence
        Request(inputs, 1),  # not started
        Request(inputs | {"position": np.zeros(1, np.int64)}, 1, start=True),
        Request(inputs | {"embeddings": np.zeros((1, 2, dim + 1), np.float32)}, 1, start=True),
    ):
        with pytest.raises(RequestError):
            model.infer([wrong])


def test_the_command_prints_the_models_and_takes_some_graphs(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path / "models"), "--graph", "codec", "--threads", "2"]
    assert runtime(["triton", str(bundle.folder), *arguments]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'models' / 'codec'}\n"
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["codec"]


def test_what_cannot_be_written_is_refused(
    bundles: Path, realtime_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, out = tmp_path / "full", tmp_path / "out"
    full.mkdir()
    (full / "file").touch()
    onnx = bundles / "onnx"
    for arguments, message in (
        ([bundles / "coreml", "--out", out], "is a bundle for coreml, expected one for onnx"),
        (
            [realtime_bundles / "onnx", "--out", out],
            "--graph: encoder: encoder_k_cache_0 is a sliding-window",
        ),
        ([onnx, "--out", full], "--out: .*full is not empty"),
        ([onnx, "--out", tmp_path / "no" / "out"], "--out: the folder .*no does not exist"),
        ([onnx, "--out", out, "--graph", "x"], "--graph 'x': expected one of embed_text"),
        ([onnx, "--out", out, "--batch", "9"], "--batch 9: one call of backbone serves at most"),
    ):
        assert runtime(["triton", *map(str, arguments)]) == 2
        assert re.search(message, capsys.readouterr().err), message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_a_damaged_bundle_leaves_nothing(
    onnx_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (onnx_copy / "codec.onnx.data").write_bytes(bytes(len((onnx_copy / "codec.onnx.data").read_bytes())))
    out = tmp_path / "models"
    assert runtime(["triton", str(onnx_copy), "--out", str(out)]) == 5
    assert "codec.onnx.data" in capsys.readouterr().err and not out.exists()
    edit_manifest(onnx_copy, lambda content: content["job"]["components"][0].update(graph="../x"))
    assert runtime(["triton", str(onnx_copy), "--out", str(out)]) == 5


def test_a_full_disk_leaves_nothing(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime.triton.repository.shutil.copyfile", fail)
    assert runtime(["triton", str(bundle.folder), "--out", str(tmp_path / "models")]) == 3
    assert "No space left" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_the_server_reads_the_configurations(repository: Path) -> None:
    """The server of the wheel nvidia-pytriton has no ONNX Runtime: it reads a model up to that point."""
    server = shutil.which("tritonserver")
    if server is None:
        pytest.skip("tritonserver is not installed")
    backends = os.environ.get("TRITON_BACKENDS", str(Path(server).parent.parent / "backends"))
    command = [server, "--model-repository", str(repository), "--backend-directory", backends]
    command += ["--disable-auto-complete-config", "--exit-on-error=true", "--allow-metrics=false"]
    command += ["--allow-grpc=false", "--allow-http=false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    output = done.stdout + done.stderr
    assert "Poll failed" not in output
    for folder in repository.iterdir():
        assert f"failed to load '{folder.name}'" in output
    assert output.count("unable to find backend library for backend 'onnxruntime'") >= len(
        list(repository.iterdir())
    )
