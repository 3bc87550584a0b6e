"""Traces of exported bundles of Qwen3-TTS equal the official package. One seed gives one speech."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from parity.test_golden_qwen3 import BAR, DESIGN, GOLDEN, open_golden
from support.export.cache import ExportCache
from support.export.golden_qwen3 import (
    CACHE,
    CASES,
    FRAME,
    difference,
    golden_bundle,
    misses,
    partly_lowered,
    request_of,
)

from voxport.runtime.__main__ import main as runtime
from voxport.runtime.engines.base import Engine
from voxport.runtime.families.qwen3_tts.workload import VERIFICATION
from voxport.runtime.opening import open_task
from voxport.runtime.text_to_speech import TextToSpeech

TALKER = ("embed_text", "embed_codes", "talker")  # the other graphs take minutes to lower
DRAWN = 12  # frames
FEW = ("sampled", "icl_short")  # drawn codes, and those of a recording
TEXTS = ("Hello there.", "How are you today? I am well.", "Yes.")


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, golden_base: Path, exports: ExportCache
) -> Callable[[str], Path]:
    """The ONNX bundle of a checkpoint; each is exported once."""
    folder = tmp_path_factory.mktemp("golden")

    def exported(name: str) -> Path:
        if name == "base":
            return golden_base
        with exports.artifacts():
            golden_bundle(name, "onnx", folder / name)
        return folder / name

    return cache(exported)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "run"), CASES)
def test_a_run_of_the_official_package(
    folder: Callable[[str], Path], name: str, run: str, tmp_path: Path
) -> None:
    assert misses(golden_bundle(name, "onnx", folder(name)).run(run, tmp_path)) == []


@pytest.mark.parametrize("run", FEW)
def test_traces_of_a_bundle_and_of_eager_are_a_run_of_the_official_package(
    folder: Callable[[str], Path], run: str, tmp_path: Path
) -> None:
    golden = golden_bundle("base", "onnx", folder("base"))
    sound = golden.reference["codec_audio"]
    codes = golden.reference["codec_codes"][: len(sound) // FRAME]
    arrays: dict[str, Any] = golden.arrays(run) | {"codec_codes": codes}
    np.savez(tmp_path / "in.npz", request=json.dumps(request_of("base", run)), **arrays)
    files = ["--inputs", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    for more in ([], ["--eager", "--checkpoint", str(GOLDEN / "base")]):
        assert runtime(["trace", str(folder("base")), *more, *files]) == 0
        with np.load(tmp_path / "out.npz") as found:
            assert misses(golden.compare(run, found)) == []
            assert difference(found["codec_audio"], sound) < 1e-4
        (tmp_path / "out.npz").unlink()


def test_codec_and_encoders_of_the_official_package(folder: Callable[[str], Path]) -> None:
    assert misses(golden_bundle("base", "onnx", folder("base")).stages()) == []


def drawn(engine: Engine) -> list[list[int]]:
    """Codes of one seed, drawn with the noise that speech of a seed has."""
    assert VERIFICATION.rollout
    codes = VERIFICATION.rollout(engine.stream(), open_golden("base").constants, DRAWN).codes
    found: list[list[int]] = codes.tolist()
    return found


def test_codes_of_a_seed_are_those_of_eager(folder: Callable[[str], Path]) -> None:
    assert drawn(golden_bundle("base", "onnx", folder("base")).engine) == drawn(open_golden("base").engine)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["executorch", "coreml", "coreai"])
def test_the_talker_of_other_targets_gives_runs_of_the_official_package(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the codes that eager draws from one seed. ExecuTorch reads the prompts in several calls."""
    for module in ("voxport.model.graph", "voxport.model.qwen3_tts.graphs"):
        monkeypatch.setattr(f"{module}.PROMPT_ROWS", 5)
    golden = partly_lowered("base", target, TALKER, tmp_path)
    rows = 5 if target == "executorch" else CACHE
    signatures = golden.engine.stream().signatures
    assert {signatures[name].dims["S"] for name in ("embed_text", "prefill")} == {(1, rows)}
    with TemporaryDirectory() as inputs:
        assert [misses(golden.run(run, Path(inputs))) for run in FEW] == [[]] * len(FEW)
    assert drawn(golden.engine) == drawn(open_golden("base").engine)


@pytest.fixture(scope="module", params=["speaker", "speaker with instruction", "design"])
def mode(
    request: pytest.FixtureRequest, folder: Callable[[str], Path]
) -> tuple[TextToSpeech, dict[str, Any]]:
    """A task, and what a request of this mode needs."""
    described = {"instruct": DESIGN}
    name, options = {
        "speaker": ("custom_voice", {"voice": "ryan"}),
        "speaker with instruction": ("custom_voice", {"voice": "ryan"} | described),
        "design": ("voice_design", described),
    }[request.param]
    return open_task(TextToSpeech, folder(name)), {**options, "seed": 3, "max_frames": 5}


def test_speech_of_one_seed_is_equal_streamed_whole_and_in_a_batch(
    mode: tuple[TextToSpeech, dict[str, Any]],
) -> None:
    """In every mode. The codec's convolutions sum in another order for other lengths."""
    speech, options = mode
    found: list[list[np.ndarray]] = [[] for _ in TEXTS]
    for index, samples in speech.speak_all(TEXTS, slots=len(TEXTS), **options):
        found[index].append(samples)
    for text, pieces in zip(TEXTS, found, strict=True):
        streamed = list(speech.speak(text, chunk_frames=1, **options))
        assert len(streamed) > 1
        whole = np.concatenate(list(speech.speak(text, chunk_frames=5, **options)))
        for other in (streamed, pieces):
            np.testing.assert_allclose(np.concatenate(other), whole, atol=BAR)


def test_another_seed_or_instruction_gives_other_speech(mode: tuple[TextToSpeech, dict[str, Any]]) -> None:
    speech, options = mode
    first = np.concatenate(list(speech.speak(TEXTS[0], **options)))
    for changes in ({"seed": 4}, {"instruct": "Very happy."}):
        other = np.concatenate(list(speech.speak(TEXTS[0], **options | changes)))
        assert other.shape != first.shape or not np.allclose(other, first, atol=BAR)
