"""The process of Core AI: replaced, killed, interrupted, or ended by a damaged asset."""

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundle_options import QUANT, edit_manifest, write_hashes
from support.export.cache import ExportCache
from support.paths import ROOT

from voxport.bundle.errors import EngineUnavailable, IntegrityError, VoxportError
from voxport.bundle.manifest import Bundle
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.engines import coreai, open_engine, trial
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.engines.trial import _zeros, call_all

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="on macOS the system's runtime is used")
STEP = "decode_step"
PROGRAM, METADATA = "backbone.aimodel/main.mlirb", "backbone.aimodel/metadata.json"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> Path:
    folder = tmp_path_factory.mktemp("coreai") / "bundle"
    precision = ("--compute-precision", "float32")
    return exports.export(folder, "--target", "coreai", *QUANT, *precision, "--no-verify")


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    """A bundle that a test may damage."""
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder of processes. Nothing may be left in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    gc.collect()
    assert not list(folder.iterdir())


def step(stream: Stream, position: int) -> Arrays:
    signature = stream.signatures[STEP]
    inputs = {
        spec.name: np.full([1 if isinstance(size, str) else size for size in spec.shape], 0.1, spec.dtype)
        for spec in signature.inputs
    }
    return stream.run(STEP, inputs | {"position": np.array([position])})


def results(folder: Path) -> list[Arrays]:
    """Outputs and states of two streams in turn."""
    engine = open_engine(Bundle(folder))
    streams = [engine.stream(), engine.stream()]
    streams[1].load({name: np.full_like(array, 0.5) for name, array in streams[1].save(STEP).items()})
    outputs = [step(stream, position) for position in range(3) for stream in streams]
    return outputs + [stream.save(STEP) for stream in streams]


def test_a_replaced_process_continues_with_equal_bytes(
    bundle: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, starts, start = results(bundle), list[int](), coreai.Worker._start

    def counted(worker: coreai.Worker) -> None:
        starts.append(1)
        start(worker)

    monkeypatch.setattr(coreai.Worker, "_start", counted)
    monkeypatch.setattr(coreai, "BUDGET", 1)
    found = results(bundle)
    assert len(starts) == 6  # before each call but the first
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("last", ["_start", "put_state"])
def test_a_failed_replacement_loses_the_states_and_says_so(
    bundle: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    ask = coreai.Worker._ask

    def fail(worker: coreai.Worker, method: str = "_start", *arguments: Any) -> Any:
        if method == last:
            raise OSError("No space left on device")
        return ask(worker, method, *arguments)

    engine = open_engine(Bundle(bundle))
    stream, other = engine.stream(), engine.stream()
    expected = step(stream, 0)
    step(other, 0)
    with monkeypatch.context() as patches:
        patches.setattr(coreai, "BUDGET", 1)
        patches.setattr(coreai.Worker, "_start" if last == "_start" else "_ask", fail)
        with pytest.raises(VoxportError, match="No space left on device"):
            step(stream, 1)
    for each in (stream, other):
        with pytest.raises(VoxportError, match="the states with it; begin again"):
            step(each, 1)
        each.reset()
        assert np.array_equal(step(each, 0)["hidden"], expected["hidden"])


def test_files_that_changed_since_they_were_opened_are_refused(
    copy: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open_engine(Bundle(copy)).stream()
    step(stream, 0)
    monkeypatch.setattr(coreai, "BUDGET", 1)
    (copy / PROGRAM).write_bytes((copy / PROGRAM).read_bytes())
    with pytest.raises(IntegrityError, match="changed while in use; open it again"):
        step(stream, 1)


def test_a_fork_does_not_use_or_end_the_process_of_its_parent(bundle: Path, scratch: Path) -> None:
    engine: Any = open_engine(Bundle(bundle))
    stream = engine.stream()
    expected = step(stream, 0)
    code = os.fork()
    if not code:
        try:
            step(stream, 1)
        except VoxportError as error:
            code = 7 * ("open it in this one too" in str(error))
        engine._program._end()  # as when Python ends
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(code, 0)[1]) == 7
    stream.reset()
    assert np.array_equal(step(stream, 0)["hidden"], expected["hidden"])


def test_the_process_removes_its_own_folder_only(tmp_path: Path) -> None:
    """Python falls back to the temporary folder of the system if a given one is gone."""
    bystander = tmp_path / "tmp" / "file"
    bystander.parent.mkdir()
    bystander.touch()
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "voxport.runtime.engines.coreai_process", str(theirs.fileno())]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(bystander.parent)}
    process = subprocess.Popen(
        [*command, str(tmp_path), str(tmp_path / "gone")], pass_fds=[theirs.fileno()], env=environment
    )
    theirs.close()
    ours.close()
    assert process.wait(60) == 0 and bystander.exists()


def test_a_damaged_asset_behind_right_hashes_is_one_line(
    copy: Path, tmp_path: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (copy / PROGRAM).read_bytes()
    (copy / PROGRAM).write_bytes(content[: len(content) // 2])
    write_hashes(copy, PROGRAM)
    say = ["say", "Hi.", "--bundle", str(copy), "-o", str(tmp_path / "out.wav"), "--max-frames", "2"]
    assert runtime(say) == 5
    error = capsys.readouterr().err
    assert "backbone.aimodel: Core AI ended with signal 6: the file is damaged, or memory is short" in error
    assert error.count("voxport: error:") == 1 and "Traceback" not in error and "ODIE" not in error
    engine = open_engine(Bundle(copy))
    stream = engine.stream()
    for _ in range(2):
        with pytest.raises(IntegrityError, match="Core AI ended with signal 6: the file is damaged"):
            step(stream, 0)
    codes = _zeros(stream.signatures["embed_codes"])
    assert stream.run("embed_codes", codes)  # another asset


def test_a_killed_process_loses_its_states_and_is_started_again(bundle: Path, scratch: Path) -> None:
    engine: Any = open_engine(Bundle(bundle))
    stream = engine.stream()
    first = step(stream, 0)
    engine._program._process.kill()
    with pytest.raises(VoxportError, match="ended with signal 9; memory may be short"):
        step(stream, 1)
    with pytest.raises(VoxportError, match="the states with it; begin again"):
        step(stream, 1)
    stream.reset()
    np.testing.assert_array_equal(step(stream, 0)["hidden"], first["hidden"])


def test_an_interrupted_call_does_not_answer_the_next_one(bundle: Path, scratch: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stream = open_engine(Bundle(bundle)).stream()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # Python and Core AI start in 0.2 s
            step(stream, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    stream.reset()
    assert step(stream, 0).keys() == {spec.name for spec in stream.signatures[STEP].outputs}


def test_the_process_ends_with_a_killed_parent(bundle: Path, scratch: Path) -> None:
    code = (
        "import sys, time; from voxport.bundle.manifest import Bundle;"
        "from voxport.runtime.engines import open_engine; from voxport.runtime.engines.trial import _zeros;"
        "engine = open_engine(Bundle(sys.argv[1])); stream = engine.stream();"
        "stream.run('embed_codes', _zeros(stream.signatures['embed_codes']));"
        "print(engine._program._process.pid, flush=True); time.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", code, str(bundle)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout
        worker = int(parent.stdout.readline())
        assert list(scratch.iterdir())
        parent.kill()
    deadline = time.monotonic() + 10
    while any(scratch.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(worker, 0)
            time.sleep(0.01)


def test_nothing_is_left_of_a_stream_or_an_engine(bundle: Path, scratch: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    engine: Any = open_engine(Bundle(bundle))
    step(engine.stream(), 0)
    gc.collect()
    stream = engine.stream()
    step(stream, 0)
    assert len({key for key, _ in engine._program.ask("places")}) == 1
    process = engine._program._process
    assert set(os.listdir(f"/proc/{process.pid}/fd")) >= {"0", "1", "2"}
    del engine, stream
    gc.collect()
    assert process.returncode is not None and len(os.listdir("/proc/self/fd")) == before


def test_two_bundles_and_threads_do_not_mix(bundle: Path, copy: Path, scratch: Path) -> None:
    expected = results(bundle)
    engines = [open_engine(Bundle(folder)) for folder in (bundle, copy)]
    found: list[Any] = [None] * 4

    def run(index: int) -> None:
        stream = engines[index % 2].stream()
        found[index] = [step(stream, position)["hidden"] for position in range(3)]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        for array, outputs in zip(each, expected[0:6:2], strict=True):
            np.testing.assert_array_equal(array, outputs["hidden"])


def test_every_component_can_be_called_with_zeros(bundle: Path, scratch: Path) -> None:
    call_all(Bundle(bundle))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("inputs", {"name": "other"}, "other is not a declared input"),
        ("inputs", {"shape": (1, 1, 3)}, r"shape: \[1, 1, 3\], expected: \[1, 1, \d+\]"),
        ("inputs", {"dtype": "int64"}, "type: int32, expected: float32"),
        ("outputs", {"name": "other"}, "output other is missing"),
        ("outputs", {"dtype": "int64"}, r"output hidden is float32 .*, the manifest says int64"),
        ("outputs", {"shape": (1, 1, 3)}, r"the manifest says float32 \[1, 1, 3\]"),
        ("states", {"name": "other"}, "No state descriptor named: backbone_other"),
        ("states", {"shape": (1, 2, 3, 4)}, r"invalid shape: \[1, 2, 3, 4\], expected"),
    ],
)
def test_a_function_that_differs_from_the_manifest_is_one_line(
    copy: Path, kind: str, change: dict[str, Any], message: str
) -> None:
    """A cache that is longer in the manifest would otherwise lose its last rows without an error."""

    def edit(content: Any) -> None:
        components = content["job"]["components"]
        for each in components:
            if each["name"] == STEP or (kind == "states" and each["graph"] == "backbone"):
                each["signature"][kind][0] |= change

    edit_manifest(copy, edit)
    with pytest.raises(IntegrityError, match=rf"{message}.*; export the bundle again") as found:
        step(open_engine(Bundle(copy)).stream(), 0)
    assert "\n" not in str(found.value)


def test_a_program_runs_in_the_thread_of_a_running_loop(bundle: Path) -> None:
    """As in a notebook on macOS, where it runs in the process."""
    from voxport.runtime.engines.coreai_process import Program

    opened = Bundle(bundle)
    engine = coreai.CoreAIEngine(opened, Program(bundle))

    async def run() -> Arrays:
        return step(engine.stream(), 0)

    expected = step(open_engine(opened).stream(), 0)
    found = asyncio.run(run())
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


def test_an_asset_of_another_version_is_one_line(copy: Path) -> None:
    path = copy / METADATA
    path.write_text(json.dumps(json.loads(path.read_text()) | {"assetVersion": "9.0"}))
    write_hashes(copy, METADATA)
    found = r"backbone\.aimodel: .*9\.0.*; export the bundle again"
    with pytest.raises(IntegrityError, match=found) as error:
        step(open_engine(Bundle(copy)).stream(), 0)
    assert "\n" not in str(error.value)


def test_a_system_that_cannot_load_core_ai_is_told_which_can(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "voxport").symlink_to(ROOT / "src" / "voxport")
    (tmp_path / "coreai").mkdir()
    (tmp_path / "coreai" / "__init__.py").write_text("raise ImportError('version `GLIBC_2.34 not found')")
    monkeypatch.setattr(trial, "PACKAGE_ROOT", tmp_path)
    with pytest.raises(EngineUnavailable, match=r"GLIBC.* voxport\[coreai\] needs Linux .* glibc 2.34"):
        step(open_engine(Bundle(bundle)).stream(), 0)
