"""A pass that raises with one text of a bundle ends that text. The others keep the sound of each alone.

The bundles compute in float32. Sums of a batch may have another order: 1e-6 of full scale.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.export.cache import ExportCache
from support.runtime.recordings import repeated_sentence

from voxport.runtime.batching import Status, Ticket
from voxport.runtime.engines.base import Arrays, EngineOptions
from voxport.runtime.engines.onnx import OnnxStream
from voxport.runtime.opening import open_task
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text_to_speech import TextToSpeech
from voxport.runtime.utterance import Utterance

TEXTS = ("Hello.", "How are you today?", "Yes.")
WRONG, WRONG_FRAME, FRAMES = 1, 2, 7
BATCHED = {
    "voxtral-tts": ("embed_codes", "decode_step", "acoustic_step"),
    "qwen3-tts": ("embed_codes", "decode_step", "code_predictor"),
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=list(BATCHED))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def task(
    family: str, golden_base: Path, exports: ExportCache, tmp_path_factory: pytest.TempPathFactory
) -> TextToSpeech:
    folder = golden_base
    if family == "voxtral-tts":
        folder = tmp_path_factory.mktemp("float") / family
        options = ["--target", "onnx", "--quant", "none", "--cache-length", "1024", "--no-verify"]
        exports.export(folder, *options)
    return open_task(TextToSpeech, folder, EngineOptions(threads=1))


@pytest.fixture(scope="module")
def voice(task: TextToSpeech, family: str, tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """The bundle's own, or one made from a sentence."""
    if family == "voxtral-tts":
        return None
    folder = tmp_path_factory.mktemp("voice")
    sound, voice = folder / "sound.wav", folder / "voice.safetensors"
    soundfile.write(sound, 0.3 * repeated_sentence(1, 24_000), 24_000)
    voice.write_bytes(task.make_voice(sound))
    return str(voice)


def request(index: int, voice: str | None) -> SpeechRequest:
    return SpeechRequest(TEXTS[index], voice=voice, seed=index, max_frames=FRAMES, chunk_frames=1)


@pytest.fixture(scope="module")
def alone(task: TextToSpeech, voice: str | None) -> list[np.ndarray]:
    """The samples of each text spoken in one slot."""
    return [spoken(task, voice, [index])[index][1] for index in range(len(TEXTS))]


def spoken(task: TextToSpeech, voice: str | None, indices: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    """The ticket and the samples of each text."""
    decoder = task.batched(len(indices))
    tickets = {decoder.submit(request(index, voice)): index for index in indices}
    pieces: dict[Ticket, list[np.ndarray]] = {ticket: [np.zeros(0, np.float32)] for ticket in tickets}
    while decoder.unfinished():
        for ticket, samples in decoder.step():
            pieces[ticket] += [] if samples is None else [samples]
    return {index: (ticket, np.concatenate(pieces[ticket])) for ticket, index in tickets.items()}


class Passes:
    """The utterances of the pass in progress, where `slots` is patched."""

    def __init__(self, patch: pytest.MonkeyPatch, slots: type) -> None:
        self.utterances: list[Any] = []
        for name in ("feed", "decode"):
            patch.setattr(slots, name, self._watched(getattr(slots, name)))

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(slots: Any, count: int, first: int = 0) -> Any:
            self.utterances = slots._from(count, first)
            try:
                return call(slots, count, first)
            finally:
                self.utterances = []

        return watched

    @property
    def is_wrong(self) -> bool:
        return any(map(is_wrong, self.utterances))


def is_wrong(utterance: Any) -> bool:
    frames = utterance._frames
    return bool(frames._request.text == TEXTS[WRONG] and frames._frames >= WRONG_FRAME)


def assert_the_others_are_right(task: TextToSpeech, voice: str | None, alone: list[np.ndarray]) -> None:
    found = spoken(task, voice, range(len(TEXTS)))
    for index, (ticket, samples) in found.items():
        np.testing.assert_allclose(samples, alone[index][: len(samples)], atol=1e-6, rtol=0)
        assert np.abs(samples).max() > 1e-3
        assert (ticket.status is Status.FAILED) == (index == WRONG)
        if index == WRONG:
            assert "planted" in str(ticket.error)
            assert len(samples) == WRONG_FRAME * task.samples_per_frame
        else:
            assert len(samples) == len(alone[index])


@pytest.mark.parametrize("call", [0, 1, 2])
def test_an_engine_that_raises_with_one_text_ends_that_text(
    task: TextToSpeech,
    voice: str | None,
    alone: list[np.ndarray],
    family: str,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
) -> None:
    """It raises after the call, whose new rows are in the caches."""
    passes, run, sizes = Passes(monkeypatch, type(task.slot_decoder(1))), OnnxStream._run, []

    def fault(stream: OnnxStream, component: str, inputs: Arrays) -> Arrays:
        outputs = run(stream, component, inputs)
        if component == BATCHED[family][call] and passes.is_wrong:
            sizes.append(stream.batch)
            raise RuntimeError("planted")
        return outputs

    monkeypatch.setattr(OnnxStream, "_run", fault)
    assert_the_others_are_right(task, voice, alone)
    assert sizes[0] > 1 and sizes[1:] == [1]


def test_work_of_one_slot_that_raises_ends_its_text(
    task: TextToSpeech, voice: str | None, alone: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = Utterance.noise

    def fault(utterance: Any) -> Any:
        found = noise(utterance)
        if is_wrong(utterance):
            raise RuntimeError("planted")
        return found

    monkeypatch.setattr(Utterance, "noise", fault)
    assert_the_others_are_right(task, voice, alone)
