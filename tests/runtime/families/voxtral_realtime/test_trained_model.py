"""The trained model in `artifacts/checkpoints`: its exported bundle writes down what espeak-ng says."""

from pathlib import Path

import numpy as np
import pytest
from support.export.cache import ExportCache

from voxport.export.evaluation.recognition import evaluate_recognition
from voxport.export.evaluation.sentences import HELD_OUT, read_sentences
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText

CHECKPOINT = Path(__file__).parents[4] / "artifacts" / "checkpoints" / "voxtral-realtime-tiny"
TEXT = "Seven green bottles are standing on the wall."
SPEECH = Path(__file__).parent / "seven_bottles.npz"  # espeak-ng, en-us+f3, 150 words a minute, 16 kHz
SENTENCES = 4  # held-out sentences
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("options", [(), ("--quant", "w4", "--streaming")], ids=["recordings", "live"])
def test_an_exported_bundle_transcribes_the_words(
    exports: ExportCache, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """With and without the graphs for live audio: the encoder of the second has calls of one size only."""
    out = tmp_path / "bundle"
    exports.export(out, "--checkpoint", str(CHECKPOINT), "--target", "onnx", *options)
    task = open_task(SpeechToText, out, EngineOptions(threads=1))
    samples = np.load(SPEECH)["samples"].astype(np.float32) / 2**15
    deltas = task.transcribe([samples], live="--streaming" in options)
    assert "".join(delta.text for delta in deltas).strip() == TEXT
    figures, _ = evaluate_recognition(task, None, read_sentences(HELD_OUT, SENTENCES))
    assert figures["wer"] == 0
    assert figures.get("live_equal", 1.0) == 1.0
