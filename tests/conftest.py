"""Bundles and checkpoints that tests share, made once for all tests."""

import gc
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings
from support.bundle_options import QUANT
from support.export.cache import SHARED, ExportCache, SharedBundles, content_hash, key_of
from support.export.faulty_engines import Engines
from support.export.golden_qwen3 import golden_bundle
from support.export.short_verification import few_calls, shorten_verification
from support.model.micro import micro_checkpoint

from voxport.bundle.user_cache import private_folder
from voxport.export.embedded_bundle import embedded_bundle
from voxport.export.memory import COLLECTION_THRESHOLD
from voxport.model import embedded
from voxport.model.families import DEFAULT, DEFAULT_OF_TASK

# Files that take longest, the longest first. They start first, so that no process ends with one of them.
LONGEST = (
    "test_deep_bundles.py",
    "test_golden_qwen3_bundles.py",
    "test_wheel.py",
    "test_golden.py",
    "test_golden_qwen3.py",
    "test_qwen_bundles.py",
    "test_golden_realtime.py",
    "test_coreml.py",
    "test_coreai.py",
    "test_embedded_models.py",
    "test_resume.py",
    "test_bundle.py",
    "test_conversion.py",
    "test_checks.py",
    "test_qwen_split_bundle.py",
    "test_qwen_float16.py",
    "test_coreml_kernels.py",
    "test_fuzz.py",
)

# Core AI for tests of commands: on Linux its verification takes over a minute, and float16 products are slow.
QUICK = {"coreai": ("--compute-precision", "float32", "--no-verify")}

# A green commit stays green; `--hypothesis-profile default` looks for new cases.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


# Bundles whose export takes more than `make test` has time for.
SLOW_FIXTURES = {"qwen_bundles", "trained_bundles", "golden_base"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and SLOW_FIXTURES & set(item.fixturenames):
        item.add_marker(pytest.mark.slow)


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
    logging.getLogger("torch.__trace").propagate = False  # thousands of lines below every failed test


@pytest.fixture(scope="session", autouse=True)
def private_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the commands that they start, use a cache folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_shared_folder(tmp_path_factory) / "user_cache"))
        patch.setenv("XDG_DATA_HOME", str(_shared_folder(tmp_path_factory) / "user_data"))
        yield


@pytest.fixture(scope="session", autouse=True)
def random_weights() -> Iterator[None]:
    """Commands in this process that are given no checkpoint use the smallest random weights: they are
    exported in less time than the trained ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "embedded_default", micro_checkpoint)
        yield


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return micro_checkpoint(DEFAULT)


def _shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run have in common."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExportCache]:
    """Exports of this run and of earlier ones."""
    is_off = os.environ.get("VOXPORT_TEST_CACHE") == "off"
    cache = ExportCache(_shared_folder(tmp_path_factory) / "exports" if is_off else SHARED)
    yield cache
    cache.prune()


def shared_bundles(
    factory: pytest.TempPathFactory,
    exports: ExportCache,
    name: str,
    arguments: list[str],
    more: Mapping[str, Sequence[str]] = {},
) -> SharedBundles:
    """Verified bundles by target. ONNX is verified as for a user, the others with fewer steps and calls.

    `more` are further options of an export, by target.
    """
    folder = _shared_folder(factory) / name
    folder.mkdir(exist_ok=True)

    def make(target: str) -> Path:
        with FileLock(folder / f"{target}.lock"):
            if (folder / target).exists():
                return folder / target
            checks = nullcontext if target == "onnx" else few_calls
            options = ["--target", target, *arguments, *more.get(target, ())]
            return exports.export(folder / target, *options, checks=checks)

    return SharedBundles.of(folder, make)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> SharedBundles:
    return shared_bundles(tmp_path_factory, exports, "bundles", QUANT)


@pytest.fixture(scope="session")
def realtime_bundles(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> SharedBundles:
    """Bundles of the speech-to-text family with integer activations on every target."""
    arguments = ["--model", "voxtral-realtime", "--quant", "8da4w", "--quant-for", "audio_encoder=w8"]
    arguments += ["--streaming", "--delay-ms", "480,80"]
    return shared_bundles(tmp_path_factory, exports, "realtime_bundles", arguments, QUICK)


@pytest.fixture(scope="session")
def qwen_bundles(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> SharedBundles:
    """Bundles of the Qwen3-TTS Base model. The short cache keeps the long checks short."""
    arguments = ["--model", "qwen3-tts", "--quant", "w4", "--cache-length", "96"]
    return shared_bundles(tmp_path_factory, exports, "qwen_bundles", arguments, QUICK)


@pytest.fixture(scope="session")
def golden_base(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> Path:
    """The ONNX bundle of the golden Base checkpoint of Qwen3-TTS, with float weights and unverified."""
    shared = _shared_folder(tmp_path_factory)
    with FileLock(shared / "golden_base.lock"), exports.artifacts():
        golden_bundle("base", "onnx", shared / "golden_base")
    return shared / "golden_base"


@pytest.fixture(scope="session")
def trained_bundles(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> dict[str, Path]:
    """The bundles, by family, that commands use if they are given none. Their models are trained."""
    folders = {family: embedded.trained_checkpoint(family) for family in DEFAULT_OF_TASK.values()}
    key = key_of("embedded", [content_hash(folder) for folder in folders.values()])
    with FileLock(_shared_folder(tmp_path_factory) / "trained.lock"):
        kept = private_folder("bundles")
        is_kept = any(kept.iterdir()) or exports.restore(key, kept)
        with exports.artifacts():
            found = {family: embedded_bundle(family, folder) for family, folder in folders.items()}
        if not is_kept:
            exports.store(key, kept)
    return found


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
