"""A program that ends its process is one line of error, and a bundle is tried once."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.bundle_options import write_hashes
from support.stand_ins import stand_in

from voxport.bundle.errors import IntegrityError, VoxportError
from voxport.bundle.manifest import MANIFEST, Bundle
from voxport.runtime.engines import trial


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (MANIFEST, "a.pte"):
        (tmp_path / name).write_text("{}")
    manifest = stand_in(model_dump_json=lambda: "{}")
    return stand_in(folder=tmp_path, manifest=manifest, engine_files={"a.pte": None})


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the other process by one that runs the code at the front of the list."""
    codes: list[str] = []
    run = subprocess.run

    def other(command: object, **options: Any) -> subprocess.CompletedProcess[Any]:
        return run([sys.executable, "-c", codes.pop(0)], **options)

    monkeypatch.setattr(subprocess, "run", other)
    return codes


def test_a_bundle_is_tried_until_it_was_good_once(bundle: Any, tries: list[str]) -> None:
    report = "import sys; print('a.pte: ExecuTorch cannot open it', end=''); sys.exit({})"
    tries += ["import os; os.abort()", report.format(3), report.format(5), "raise SystemExit(1)", ""]
    with pytest.raises(IntegrityError, match=f"the engine ended with signal {signal.SIGABRT:d}; fetch"):
        trial.trial_run(bundle)
    for error in (VoxportError, IntegrityError):
        with pytest.raises(error, match=r"^a\.pte: ExecuTorch cannot open it$"):
            trial.trial_run(bundle)
    trial.trial_run(bundle)  # not an error of the bundle: the caller meets it
    trial.trial_run(bundle)
    assert not tries
    trial.trial_run(bundle)  # would fail without another code


def test_a_changed_file_is_tried_again(bundle: Any, tries: list[str]) -> None:
    tries += ["", ""]
    trial.trial_run(bundle)
    os.utime(bundle.folder / "a.pte", (1, 1))
    trial.trial_run(bundle)
    assert not tries


def test_a_program_without_end_is_stopped(
    bundle: Any, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries += ["import time; time.sleep(60)"]
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.5)
    with pytest.raises(IntegrityError, match="does not end"):
        trial.trial_run(bundle)


def test_no_module_is_imported_from_the_current_folder(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle may list any file, and people run commands in its folder."""
    for name in ("numpy.py", "bundle.py", "sitecustomize.py"):
        (bundle.folder / name).write_text("open('imported', 'w')")
    monkeypatch.chdir(bundle.folder)
    with pytest.raises(IntegrityError, match="schema_version"):
        trial.trial_run(bundle)
    assert not (bundle.folder / "imported").exists()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml"])
def test_every_component_of_a_right_bundle_can_be_called_with_zeros(bundles: Path, target: str) -> None:
    trial.call_all(Bundle(bundles / target))


@pytest.mark.slow
def test_the_programs_are_called_in_another_process(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = shutil.copytree(bundles / "executorch", tmp_path / "bundle")
    trial.trial_run(Bundle(copy))
    assert len(list((tmp_path / "cache" / "voxport" / "tried").iterdir())) == 1


def abort_on_call(bundle: Path, name: str) -> None:
    """Changes the first operator of a program: its first argument is a value that is no tensor."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
    from executorch.exir.schema import KernelCall, Tensor

    file = deserialize_pte_binary((bundle / name).read_bytes())
    plan = file.program.execution_plan[0]
    calls = (instruction.instr_args for instruction in plan.chains[0].instructions)
    call = next(call for call in calls if isinstance(call, KernelCall))
    call.args[0] = next(index for index, value in enumerate(plan.values) if not isinstance(value.val, Tensor))
    (bundle / name).write_bytes(bytes(serialize_pte_binary(file)))
    write_hashes(bundle, name)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_program_that_aborts_does_not_end_the_command(
    bundles: Path, checkpoint: Path, tmp_path: Path, command: str
) -> None:
    copy = shutil.copytree(bundles / "executorch", tmp_path / "bundle")
    abort_on_call(copy, "acoustic_step.pte")
    arguments = [sys.executable, "-m", "voxport.export", command, str(copy)]
    arguments += ["--checkpoint", str(checkpoint)] if command == "verify" else []
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert f"the engine ended with signal {signal.SIGABRT:d}; fetch" in done.stderr.splitlines()[-1]
