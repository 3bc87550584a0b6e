"""Texts of one `speak_all` with voices, languages, instructions and lengths of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.runtime.speech_tasks import CACHE, qwen_engines, qwen_task

from voxport.__main__ import main as voxport
from voxport.bundle.errors import UsageError
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder, Reference, Voice
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.families.qwen3_tts.voices import model_digest, voice_content
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.text_to_speech import Speech

TEXTS = ["Hello there.", "Wie geht es dir?", "Yes.", "How are you? " * 8]
CUSTOM: list[SpeechOptions] = [
    {"voice": "ryan", "language": "english", "instruct": "Calm."},
    {"voice": "vivian", "language": "auto", "max_frames": 3, "seed": 1},
    {"language": "chinese", "sampling": {"temperature": 0}},
    {"voice": "dylan", "language": "beijing_dialect", "chunk_frames": 1, "verbatim": True},
]


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> QwenTextToSpeech:
    """A model with preset speakers that follows instructions."""
    folder = tmp_path_factory.mktemp("custom") / "model"
    write_checkpoint(folder, "tiny-custom-voice", key="qwen3_tts")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"tts_model_size": "1b7"}))
    return qwen_task(qwen_engines(folder), max_batch=3)


@pytest.fixture(scope="module")
def base() -> QwenTextToSpeech:
    return qwen_task(qwen_engines(), max_batch=3)


@pytest.fixture(scope="module")
def cloned(base: QwenTextToSpeech, tmp_path_factory: pytest.TempPathFactory) -> list[SpeechOptions]:
    """Options with voices that are a vector only, and that continue a recording."""
    constants, rng = base._constants, np.random.default_rng(0)
    folder, vector = tmp_path_factory.mktemp("voices"), rng.standard_normal(base._constants.dim, np.float32)
    codes = rng.integers(0, 16, (6, constants.n_codebooks))
    for name, reference in (("vector", None), ("recording", Reference(np.array([5, 6]), codes))):
        content = voice_content(Voice(vector, reference), model_digest(base.bundle))
        (folder / f"{name}.safetensors").write_bytes(content)
    vector_only, recording = (str(folder / f"{name}.safetensors") for name in ("vector", "recording"))
    return [
        {"voice": vector_only, "language": "en"},
        {"voice": recording, "language": "german", "seed": 3},
        {"voice": recording, "max_frames": 2},
        {"voice": vector_only, "language": "auto", "pause": 0.0},
    ]


def test_speech_of_each_text_is_that_of_the_text_alone(
    custom: QwenTextToSpeech, base: QwenTextToSpeech, cloned: list[SpeechOptions]
) -> None:
    for task, each in ((custom, CUSTOM), (base, cloned)):
        found: list[list[np.ndarray]] = [[] for _ in TEXTS]
        common: SpeechOptions = {"max_frames": 5, "seed": 9}
        for index, samples in task.speak_all(TEXTS, 3, each, **common):
            found[index].append(samples)
        for text, pieces, options in zip(TEXTS, found, each, strict=True):
            both: dict[str, Any] = {**common, **options}
            alone = np.concatenate(list(task.speak(text, **both)))
            assert np.concatenate(pieces).shape == alone.shape and np.abs(alone).max() > 0.01
            np.testing.assert_allclose(np.concatenate(pieces), alone, atol=1e-5)


@pytest.mark.parametrize(
    ("each", "says"),
    [
        ([{}], "speak_all: 2 texts, but options_of_each has 1"),
        ([{}, {"speed": 2}], "text 1: options speed: expected a dict with some of voice, instruct"),
        ([{}, "voice"], "text 1: options 'voice': expected a dict"),
        ([{}, {"voice": "nobody"}], "text 1: voice nobody: unknown voice"),
        ([{"language": "klingon"}, {}], "text 0: language 'klingon': this model does not speak it"),
        ([{"instruct": 5}, {}], "text 0: instruct 5: expected a str"),
    ],
)
def test_wrong_options_of_a_text_are_named(custom: QwenTextToSpeech, each: list[Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        next(custom.speak_all(["Hi.", "Yes."], options_of_each=each))


def parts(task: QwenTextToSpeech, text: str, **options: Any) -> list[str]:
    speech, found = Speech(task, text, **options), []
    while request := speech.next_part():
        found.append(request.text)
    return found


def test_parts_of_a_long_text_leave_room_for_the_instruction(custom: QwenTextToSpeech) -> None:
    instruct, text = "Speak in a calm and low voice.", "One, two, three, four, five, six, seven. " * 4
    found = parts(custom, text, voice="ryan", language="en", instruct=instruct)
    assert len(found) > len(parts(custom, text, voice="ryan", language="en"))
    for part in found:
        prompt = custom._builder.build(part, Voice("ryan"), "english", instruct)
        rows = PromptEmbedder(custom.engine.stream(), custom._constants).rows(prompt)
        assert len(rows.prefill) + custom.estimated_frames(part) <= CACHE


def test_an_instruction_that_fills_the_cache_is_named(custom: QwenTextToSpeech) -> None:
    with pytest.raises(UsageError, match=r"^instruct: its \d+ rows leave no room for a text"):
        next(custom.speak("Hi.", instruct="calm and low " * 20))


@pytest.mark.parametrize(
    ("voice", "language", "says"),
    [
        ("ryan", "german", "drei Dollar"),
        ("ryan", "de", "drei Dollar"),
        ("ryan", "auto", "three dollars"),
        ("ono_anna", "english", "three dollars"),
    ],
)
def test_amounts_are_read_in_the_language_of_the_text_or_the_voice(
    custom: QwenTextToSpeech, voice: str, language: str, says: str
) -> None:
    (part,) = parts(custom, "It costs $3 now.", voice=voice, language=language)
    assert says in part


Say = Callable[..., np.ndarray]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Say:
    """Runs `say` on a task in place of a bundle; asserts the exit code and returns the samples."""

    def run(task: QwenTextToSpeech, text: str, *options: str, code: int = 0) -> np.ndarray:
        monkeypatch.setattr("voxport.runtime.opening.open_task", lambda *_: task)
        out = tmp_path / "a.wav"
        fixed = ("--bundle", "none", "--max-frames", "3", "-o", str(out))
        assert voxport(["say", text, *fixed, *options]) == code
        return np.zeros(0) if code else np.asarray(soundfile.read(out, dtype="float32")[0])

    return run


def test_a_language_by_command(
    custom: QwenTextToSpeech, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("auto", "english", "beijing_dialect", "zh", "zh-CN"):
        say(custom, "Hi.", "--language", name)
    capsys.readouterr()
    say(custom, "Hi.", "--language", "klingon", code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert "--language 'klingon': this model does not speak it; it has auto, beijing_dialect, chinese" in line


def test_a_speaker_and_a_description_by_command(custom: QwenTextToSpeech, say: Say, tmp_path: Path) -> None:
    """A VoiceDesign model speaks with the described voice."""
    write_checkpoint(tmp_path / "model", "tiny-voice-design", key="qwen3_tts")
    design = qwen_task(qwen_engines(tmp_path / "model"))
    for task, text, first, second in (
        (custom, "Good morning to you.", ("ryan", "Calm."), ("vivian", "Calm.")),
        (custom, "Good morning to you.", ("ryan", "Calm."), ("ryan", "Cheerful.")),
        (design, "Hi.", (None, "A calm old man with a low voice."), (None, "A child.")),
    ):
        spoken = []
        for speaker, description in (first, second):
            voice = ("--voice", speaker) if speaker else ()
            samples = say(task, text, "--instruct", description, *voice)
            options: SpeechOptions = {"voice": speaker, "instruct": description, "max_frames": 3}
            expected = np.concatenate(list(task.speak(text, **options)))
            np.testing.assert_allclose(samples, expected, atol=1 / 32768)
            spoken.append(samples)
        assert np.abs(spoken[0] - spoken[1]).max() > 0.01
