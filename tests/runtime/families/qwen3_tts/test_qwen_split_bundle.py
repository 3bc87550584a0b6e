"""A Core ML bundle of `--split six`: its packages, and speech from them.

The model has no encoders and the cache few rows, because the conversion of encoders takes a minute.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.export.cache import ExportCache
from support.export.short_verification import shorten_verification

from voxport.bundle.manifest import Bundle
from voxport.model.__main__ import main as model
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.opening import open_task
from voxport.runtime.text_to_speech import TextToSpeech

PACKAGES = (
    "CodeDecoder",
    "CodeEmbedder",
    "MultiCodeDecoder",
    "MultiCodeEmbedder",
    "SpeechDecoder",
    "TextProjector",
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> Path:
    """Verified, with the recipe of the signature command."""
    folder = tmp_path_factory.mktemp("six")
    kind = ["--model", "qwen3-tts", "--size", "tiny-custom-voice"]
    assert model(["synth", str(folder / "checkpoint"), *kind]) == 0
    arguments = ["--checkpoint", str(folder / "checkpoint"), "--target", "coreml", "--quant", "w8"]
    layout = ["--split", "six", "--cache-length", "64"]
    return exports.export(folder / "bundle", *arguments, *layout, checks=shorten_verification)


def test_the_bundle_has_six_packages_and_was_verified(bundle: Path) -> None:
    assert sorted(path.stem for path in bundle.glob("*.mlpackage")) == sorted(PACKAGES)
    assert Bundle(bundle).is_verified


def test_streamed_speech_is_that_in_one_piece(bundle: Path) -> None:
    speech = open_task(TextToSpeech, bundle, EngineOptions(compute_precision="float32"))
    options: dict[str, Any] = {"voice": "ryan", "seed": 4, "max_frames": 4}
    pieces = [list(speech.speak("Hi.", chunk_frames=size, **options)) for size in (1, 4)]
    streamed, whole = map(np.concatenate, pieces)
    assert len(pieces[0]) == 4 and len(whole) == 4 * speech.samples_per_frame
    np.testing.assert_array_equal(streamed, whole)  # a call of the decoder always has 125 frames
