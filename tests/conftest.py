"""Bundles of the embedded default, made once for all tests with the command line."""

import gc
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from hypothesis import settings
from support.bundle_options import QUANT
from support.export.faulty_engines import Engines
from support.export.golden_qwen3 import golden_bundle
from support.export.short_verification import shorten_verification

from voxport.export.__main__ import main as export
from voxport.export.embedded_bundle import embedded_bundle
from voxport.export.memory import COLLECTION_THRESHOLD
from voxport.export.verify.modes import VerifyOptions
from voxport.model import embedded
from voxport.model.families import DEFAULT_OF_TASK
from voxport.model.synthetic.checkpoint import random_checkpoint

TARGETS = ("onnx", "executorch", "coreml")
# The shared ONNX bundles are verified as those of a user, the others with fewer steps or calls.
SHORT_RUN = VerifyOptions(steps=200)
# Files that take longest, the longest first. They start first, so that no process ends with one of them.
LONGEST = (
    "test_golden_qwen3_bundles.py",
    "test_bundle_speech.py",
    "test_bundle.py",
    "test_golden.py",
    "test_coreml_faults.py",
    "test_coreml_engine.py",
    "test_golden_realtime.py",
    "test_coreml.py",
    "test_qwen_bundles.py",
    "test_qwen_split_bundle.py",
    "test_resume.py",
    "test_verify.py",
    "test_fuzz.py",
    "test_toy_scheme.py",
    "test_toy_family.py",
    "test_networks.py",
)

# A green commit stays green; `--hypothesis-profile default` looks for new cases.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts files: `LONGEST`, then those with slow tests, then the others."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    rank = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (rank.get(item.path.name, len(rank)), item.path not in slow))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Garbage collections took a tenth of the time: leaves imported modules out, and makes others rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTION_THRESHOLD, *gc.get_threshold()[1:])


@pytest.fixture(scope="session", autouse=True)
def private_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the commands that they start, use a cache folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_shared_folder(tmp_path_factory) / "user_cache"))
        patch.setenv("XDG_DATA_HOME", str(_shared_folder(tmp_path_factory) / "user_data"))
        yield


@pytest.fixture(scope="session", autouse=True)
def random_weights() -> Iterator[None]:
    """Commands in this process that are given no checkpoint use random weights: they are smaller and exported
    in less time than the trained ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "has_trained", lambda family: False)
        yield


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return random_checkpoint()


def _shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run have in common."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def exported_once(
    factory: pytest.TempPathFactory, name: str, arguments: list[str], is_short: bool = True
) -> Path:
    """A verified bundle per target. Several test processes share the exports, and each makes some of them."""
    shared = _shared_folder(factory) / name
    shared.mkdir(exist_ok=True)
    for seconds in (0, -1):  # first the targets that no other process makes, then waits for the others
        for target in TARGETS:
            with suppress(Timeout), FileLock(shared / f"{target}.lock", timeout=seconds):
                if not (shared / target).exists():
                    command = ["--target", target, *arguments, "--out", str(shared / target)]
                    with _verification(target, is_short):
                        assert export(command) == 0
    return shared


@contextmanager
def _verification(target: str, is_short: bool) -> Iterator[None]:
    """How much of a shared bundle is verified."""
    with ExitStack() as stack:
        if target != "onnx":
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(
                "voxport.export.build.DEFAULTS", SHORT_RUN
            )
            if is_short:
                stack.enter_context(shorten_verification())
        yield


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported_once(tmp_path_factory, "bundles", QUANT, is_short=False)


@pytest.fixture(scope="session")
def realtime_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of the speech-to-text family with integer activations on every target."""
    arguments = [
        "--model",
        "voxtral-realtime",
        "--quant",
        "8da4w",
        "--quant-for",
        "audio_encoder=w8",
        "--streaming",
        "--delay-ms",
        "480,80",
    ]
    return exported_once(tmp_path_factory, "realtime_bundles", arguments)


@pytest.fixture(scope="session")
def qwen_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of the embedded Qwen3-TTS Base model. The short cache keeps the long checks short."""
    arguments = ["--model", "qwen3-tts", "--quant", "w4", "--cache-length", "96"]
    return exported_once(tmp_path_factory, "qwen_bundles", arguments)


@pytest.fixture(scope="session")
def golden_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ONNX bundle of the golden Base checkpoint of Qwen3-TTS, with float weights and unverified."""
    shared = _shared_folder(tmp_path_factory)
    with FileLock(shared / "golden_base.lock"):
        golden_bundle("base", "onnx", shared / "golden_base")
    return shared / "golden_base"


@pytest.fixture(scope="session")
def trained_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundles, by family, that commands use where they are given none. Their models are trained."""
    families = tuple(DEFAULT_OF_TASK.values())
    with FileLock(_shared_folder(tmp_path_factory) / "trained.lock"):
        return {family: embedded_bundle(family, embedded.trained_checkpoint(family)) for family in families}


@pytest.fixture
def short_verification() -> Iterator[None]:
    """Verification in this process compares few calls."""
    with shorten_verification():
        yield


@pytest.fixture
def onnx_copy(bundles: Path, tmp_path: Path) -> Path:
    """A bundle that a test may damage."""
    return Path(shutil.copytree(bundles / "onnx", tmp_path / "bundle"))


@pytest.fixture(scope="module", params=["none", "w8"])
def engines(request: pytest.FixtureRequest, checkpoint: Path) -> Engines:
    """Eager in the arithmetic of a target, with and without integers."""
    return Engines(checkpoint, request.param)
