"""The stored evaluations of the embedded models reach what docs/evaluation.md says of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

FOLDER = ROOT / "docs" / "bench" / "evaluation"
TARGETS = ("onnx", "executorch", "coreml")
MOST = {"w8": 0.01, "w4": 0.02}  # of the word error rate, above full precision
READINGS = 4


def stored(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def bundles(family: str) -> list[Path]:
    return sorted(path for path in FOLDER.glob(f"{family}-*.json") if "whisper" not in path.name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("recipe", MOST)
def test_quantised_speech_is_near_that_of_full_precision(target: str, recipe: str) -> None:
    found = stored(f"voxtral_tts-{target}-{recipe}")
    assert len(found["rows"]) == 100 * READINGS
    assert found["figures"]["wer"] - found["figures"]["wer_full"] <= MOST[recipe]


def test_sentences_end_by_themselves_in_time() -> None:
    found = [json.loads(path.read_text())["figures"] for path in bundles("voxtral_tts")]
    assert len(found) == 10 and max(figures["not_ended"] for figures in found) <= 0.01


def test_recordings_are_transcribed_live_as_whole() -> None:
    found = [json.loads(path.read_text())["figures"] for path in bundles("voxtral_realtime")]
    assert len(found) == 9
    assert all(figures["live_equal"] == 1 and figures["wer"] <= 0.05 for figures in found)


def test_an_independent_recogniser_hears_speech_almost_as_well_as_recordings() -> None:
    figures = stored("voxtral_tts-onnx-none-whisper")["figures"]
    assert figures["wer"] - figures["wer_recordings"] <= 0.10
