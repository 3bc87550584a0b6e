"""Speech of exported Qwen3-TTS bundles on every target: streamed, whole, batched, and with voices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.runtime.recordings import repeated_sentence

from voxport.__main__ import main as voxport
from voxport.export.evaluation.speech import speak_part
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.opening import open_task
from voxport.runtime.speech_request import TEXT_LAYOUTS, SpeechRequest, TextLayout
from voxport.runtime.text_to_speech import TextToSpeech

TARGETS = ("onnx", "executorch", "coreml")
RATE, SECONDS = 24_000, 1.2
TEXTS = ("Hello there.", "How are you today? I am well.", "Yes.")
CLOSE = 1e-4  # codec convolutions sum in another order for other lengths; the design's bar of one target


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "anna.wav"
    soundfile.write(path, 0.3 * repeated_sentence(SECONDS, RATE), RATE)
    return path


@pytest.fixture(scope="module", params=TARGETS)
def speech(request: pytest.FixtureRequest, qwen_bundles: Path) -> TextToSpeech:
    """Core ML without rounding to half precision, which differs from chunk to chunk."""
    options = EngineOptions(compute_precision="float32" if request.param == "coreml" else None)
    return open_task(TextToSpeech, qwen_bundles / request.param, options)


@pytest.fixture(scope="module", params=["vector", "transcript"])
def voice(
    request: pytest.FixtureRequest,
    speech: TextToSpeech,
    recording: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A voice that is a vector only, and one that continues its recording."""
    path = tmp_path_factory.mktemp("voice") / f"{request.param}.safetensors"
    transcript = "How are you?" if request.param == "transcript" else None
    path.write_bytes(speech.make_voice(recording, transcript))
    return path


def whole(speech: TextToSpeech, text: str, **options: Any) -> np.ndarray:
    return np.concatenate(list(speech.speak(text, max_frames=6, **options)))


@pytest.mark.slow
@pytest.mark.parametrize("layout", TEXT_LAYOUTS)
def test_streamed_speech_is_that_in_one_piece(speech: TextToSpeech, voice: Path, layout: TextLayout) -> None:
    options: dict[str, Any] = {"voice": str(voice), "seed": 4, "text_layout": layout}
    pieces = list(speech.speak(TEXTS[0], max_frames=6, chunk_frames=1, **options))
    assert {len(piece) for piece in pieces} == {speech.samples_per_frame}
    found, expected = np.concatenate(pieces), whole(speech, TEXTS[0], chunk_frames=6, **options)
    assert found.shape == expected.shape and np.abs(expected).max() > 0.01
    np.testing.assert_allclose(found, expected, atol=CLOSE)


def test_a_model_that_is_given_its_own_codes_chooses_them_again(speech: TextToSpeech, voice: Path) -> None:
    part = speak_part(speech, SpeechRequest(TEXTS[0], voice=str(voice), seed=4, max_frames=6))
    assert np.array_equal(speak_part(speech, part.request, part.chosen).chosen, part.chosen)


@pytest.mark.parametrize("layout", TEXT_LAYOUTS)
def test_texts_in_a_batch_give_the_speech_of_each_alone(
    speech: TextToSpeech, voice: Path, layout: TextLayout
) -> None:
    options: dict[str, Any] = {"voice": str(voice), "seed": 5, "max_frames": 5, "text_layout": layout}
    found: list[list[np.ndarray]] = [[] for _ in TEXTS]
    for index, samples in speech.speak_all(TEXTS, slots=3, **options):
        found[index].append(samples)
    for text, pieces in zip(TEXTS, found, strict=True):
        expected = np.concatenate(list(speech.speak(text, **options)))
        assert np.concatenate(pieces).shape == expected.shape
        np.testing.assert_allclose(np.concatenate(pieces), expected, atol=CLOSE)


def test_both_kinds_of_voice_differ(speech: TextToSpeech, recording: Path, tmp_path: Path) -> None:
    for name, transcript in (("a", None), ("b", "How are you?")):
        (tmp_path / f"{name}.safetensors").write_bytes(speech.make_voice(recording, transcript))
    first, second = (
        whole(speech, TEXTS[0], voice=str(tmp_path / f"{name}.safetensors")) for name in ("a", "b")
    )
    assert first.shape != second.shape or not np.allclose(first, second, atol=CLOSE)


@pytest.mark.parametrize("target", TARGETS)
def test_a_voice_of_the_user_speaks_by_its_name(
    qwen_bundles: Path, recording: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(qwen_bundles / target)
    assert voxport(["voice", "add", "anna", str(recording), "--replace", "--bundle", bundle]) == 0
    assert "anna" in capsys.readouterr().out
    assert voxport(["voice", "list", "--bundle", bundle]) == 0
    assert "anna" in capsys.readouterr().out
    out = tmp_path / "out.wav"
    arguments = ["say", "Hi.", "--voice", "anna", "--max-frames", "3", "--bundle", bundle, "-o", str(out)]
    assert voxport(arguments) == 0
    assert soundfile.info(str(out)).frames <= 3 * 1920


def test_executorch_has_no_convolution_of_its_own(qwen_bundles: Path) -> None:
    """Its kernel takes a hundred times as long as XNNPACK."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    paths = list((qwen_bundles / "executorch").glob("*.pte"))
    assert {"codec", "speech_encoder", "speaker_encoder"} <= {path.stem for path in paths}
    for path in paths:
        plans = deserialize_pte_binary(path.read_bytes()).program.execution_plan
        operators = {operator.name for plan in plans for operator in plan.operators}
        assert any(plan.delegates for plan in plans) or path.stem.startswith("embed")
        assert operators and not [name for name in operators if "convolution" in name], path.name
