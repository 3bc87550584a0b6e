"""The ONNX engine: the choice of a device, and a graph that is not what the manifest says."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from support.stand_ins import stand_in

import voxport.runtime.engines.onnx
from voxport.bundle.errors import EngineUnavailable, IntegrityError, UsageError, VoxportError
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.engines.onnx import CPU, CUDA, OnnxEngine, check_session, open_device, ort

FLOAT16, FLOAT32 = stand_in(compute_precision="float16"), stand_in(compute_precision="float32")


def with_cuda(monkeypatch: pytest.MonkeyPatch, load: Callable[[], object]) -> None:
    """As if the package for CUDA were installed; `load` loads its libraries."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(voxport.runtime.engines.onnx, "load_cuda", load)


def no_library() -> None:
    raise RuntimeError("CUDA Provider not available\nat line 2465")


def test_without_the_package_of_cuda_the_processor_is_used_unless_cuda_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    assert open_device(FLOAT16, None) is open_device(FLOAT16, "auto") is open_device(FLOAT16, "cpu") is None
    with pytest.raises(EngineUnavailable, match=r"has CPUExecutionProvider, .*pip install") as caught:
        open_device(FLOAT16, "cuda")
    assert caught.value.field == "device" and caught.value.exit_code == 2


def test_libraries_that_do_not_load_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_cuda(monkeypatch, no_library)
    with pytest.raises(VoxportError, match=r"does not load: CUDA Provider not available; .*cuDNN") as caught:
        open_device(FLOAT16, "cuda")
    assert caught.value.exit_code == 3
    assert open_device(FLOAT16, "cpu") is None and not caplog.records
    assert open_device(FLOAT16, "auto") is None and "the processor runs the bundle" in caplog.text


def test_cuda_runs_bundles_that_compute_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    device = object()
    with_cuda(monkeypatch, lambda: device)
    assert (
        open_device(FLOAT16, None) is open_device(FLOAT16, "auto") is open_device(FLOAT16, "cuda") is device
    )
    assert open_device(FLOAT16, "cpu") is open_device(FLOAT32, None) is open_device(FLOAT32, "auto") is None
    with pytest.raises(UsageError, match="for bundles that compute in float16; export with"):
        open_device(FLOAT32, "cuda")
    with pytest.raises(UsageError, match="expected one of auto, cpu, cuda"):
        open_device(FLOAT16, "gpu")


FLOATS = TensorProto.FLOAT
X, Y = (helper.make_tensor_value_info(name, FLOATS, ["B", 4]) for name in "xy")


def entry(
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = (("x", (1, 4)),),
    outputs: tuple[tuple[str, tuple[int, int]]] = (("y", (1, 4)),),
    states: tuple[StateSpec, ...] = (),
) -> Any:
    tensors = [
        tuple(TensorSpec(name, "float32", shape, Kind.HIDDEN) for name, shape in part)
        for part in (inputs, outputs)
    ]
    return stand_in(name="step", signature=Signature(tensors[0], tensors[1], states))


CACHE = StateSpec("cache", "float32", (1, 4, 1, 8), CacheSpec("BSHD"))


@pytest.mark.parametrize(
    "wrong",
    [
        entry(inputs=(("x", (1, 5)),)),
        entry(inputs=(("x", (1, 4, 1)),)),
        entry(inputs=(("x", ()),)),
        entry(inputs=(("z", (1, 4)),)),
        entry(inputs=()),
        entry(inputs=(("x", (1, 4)), ("more", (1, 4)))),
        entry(outputs=(("y", (1, 3)),)),
        entry(outputs=(("w", (1, 4)),)),
        entry(states=(CACHE,)),
    ],
)
def test_a_manifest_that_does_not_describe_the_graph_is_refused(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "a.onnx"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [X], [Y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    session = ort.InferenceSession(path)
    check_session(session, path, [entry()])
    with pytest.raises(IntegrityError, match="the manifest says"):
        check_session(session, path, [entry(), wrong])


def test_a_damaged_graph_is_an_error_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Samples may go to stdout. On a name that is not UTF-8, ONNX Runtime would print its fallback there."""
    graph = helper.make_graph([helper.make_node("Relu", ["strange"], ["y"])], "g", [X], [Y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "step.onnx").write_bytes(model.SerializeToString().replace(b"strange", b"str\xffnge"))
    engine = OnnxEngine(stand_in(job=FLOAT32, folder=tmp_path, components=()), EngineOptions(threads=1))
    with pytest.raises(VoxportError, match=r"step\.onnx: ONNX Runtime cannot open it"):
        engine.session("step.onnx")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link"])
def test_weights_outside_the_folder_of_the_bundle_are_refused(tmp_path: Path, location: str) -> None:
    """By ONNX Runtime itself, also if a link leads there."""
    (tmp_path / "secret").write_bytes(bytes(16))
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    weights = TensorProto(name="w", dims=[4], data_type=FLOATS, data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [X], [Y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "a.onnx").write_bytes(model.SerializeToString())
    bundle = stand_in(folder=folder, job=FLOAT32, components=())
    with pytest.raises(VoxportError, match=r"a\.onnx: ONNX Runtime cannot open it: .*External data path"):
        OnnxEngine(bundle, EngineOptions()).session("a.onnx")


def test_a_session_that_was_opened_ahead_is_opened_once_and_alone(tmp_path: Path) -> None:
    """The caller does not wait; a call waits for its own graph, and gets the error of that graph."""
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [X], [Y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    for name in ("a.onnx", "unused.onnx"):
        onnx.save(model, tmp_path / name)
    (tmp_path / "damaged.onnx").write_text("no graph")
    names = {"a": "a.onnx", "b": "damaged.onnx", "c": "unused.onnx"}
    entries = [
        stand_in(name=name, file=file, signature=entry().signature, weight_bytes=0)
        for name, file in names.items()
    ]
    may_read, opened = Event(), list[str]()

    class Slow(OnnxEngine):
        @staticmethod
        def read_graph(path: Path) -> Path:
            opened.append(path.name)
            assert may_read.wait(10)
            return path

    bundle = stand_in(job=FLOAT32, folder=tmp_path, components=entries)
    engine = Slow(bundle, EngineOptions(threads=1))
    for _ in range(2):
        engine.open_ahead({"a", "b"})
    may_read.set()  # not reached if `open_ahead` waited
    assert engine.session("a.onnx") is engine.session("a.onnx")
    with pytest.raises(VoxportError, match=r"damaged\.onnx: ONNX Runtime cannot open it"):
        engine.session("damaged.onnx")
    assert sorted(opened) == ["a.onnx", "damaged.onnx"]
    onnx.save(model, tmp_path / "damaged.onnx")
    assert engine.session("damaged.onnx")  # a failure is not kept


def test_opening_all_files_waits_and_fails_on_a_damaged_one(tmp_path: Path) -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [X], [Y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_bytes(b"damaged")
    entries = [
        stand_in(name=name, file=f"{name}.onnx", signature=entry().signature, weight_bytes=0) for name in "ab"
    ]
    engine = OnnxEngine(stand_in(job=FLOAT32, folder=tmp_path, components=entries), EngineOptions(threads=1))
    with pytest.raises(VoxportError, match=r"b\.onnx: ONNX Runtime cannot open it"):
        engine.open_files()
    onnx.save(model, tmp_path / "b.onnx")
    engine.open_files()
    for name in "ab":
        (tmp_path / f"{name}.onnx").unlink()
        assert engine.session(f"{name}.onnx")


def test_an_engine_that_ends_does_not_wait_for_sessions(tmp_path: Path) -> None:
    may_read, options = Event(), list[ort.SessionOptions]()

    class Slow(OnnxEngine):
        @staticmethod
        def read_graph(path: Path) -> Path:
            assert may_read.wait(10)
            return path

        def session_options(self, threads: int) -> ort.SessionOptions:
            options.append(super().session_options(threads))
            return options[-1]

    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [X], [Y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "a.onnx")
    entries = [stand_in(name="a", file="a.onnx", signature=entry().signature, weight_bytes=0)]
    engine = Slow(stand_in(job=FLOAT32, folder=tmp_path, components=entries), EngineOptions(threads=1))
    engine.open_ahead()
    del engine
    with pytest.raises(Exception, match="CANCELED"):
        ort.InferenceSession(tmp_path / "a.onnx", options[0], providers=[CPU])
    may_read.set()
