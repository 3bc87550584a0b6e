"""Sampling settings of a request: what each does, in every way of speaking, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import BatchedStreams, Engines, FaultyStream, no_fault
from support.runtime.prefix_caches import private_prefix_cache
from support.runtime.speech_tasks import ToyVoxtral, qwen_engines, qwen_task
from support.runtime.toy_speech import CONSTANTS
from support.stand_ins import stand_in

from voxport.__main__ import main as voxport
from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.errors import UsageError
from voxport.runtime.batching import BatchedDecoder
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.qwen3_tts.decoder import ReferenceStates, sampling_of
from voxport.runtime.families.qwen3_tts.prompt import QwenPrompt, Voice
from voxport.runtime.families.qwen3_tts.task import QwenSlots, QwenTextToSpeech
from voxport.runtime.families.qwen3_tts.voices import model_digest, voice_content
from voxport.runtime.families.voxtral_tts.task import PromptBuilder
from voxport.runtime.speech_request import SAMPLING, SpeechRequest

GREEDY: dict[str, Any] = {"temperature": 0, "sub_temperature": 0}
FRAMES = 6
NEW = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.25,
    "repetition_penalty": 2.0,
    "sub_temperature": 0.75,
    "sub_top_k": 9,
    "sub_top_p": 0.125,
}


@pytest.fixture(scope="module")
def engines() -> Engines:
    return qwen_engines()


@pytest.fixture(scope="module")
def constants(engines: Engines) -> QwenConstants:
    """The tiny model's. It gives every setting a default that none of the tests asks for."""
    found: QwenConstants = engines.constants
    return found


class Spoken:
    """Requests that are spoken in the slots of one decoder, by eager: samples and codes of each."""

    def __init__(self, engines: Engines, requests: list[SpeechRequest], slots: int = 1) -> None:
        self.codes: list[np.ndarray] = []  # int64 [slots, K] of each call of the code predictor
        make = lambda: FaultyStream(engines.eager.stream(), no_fault)
        stream: Stream = BatchedStreams(make, slots, self._keep)
        decoder = BatchedDecoder(
            QwenSlots(
                stream,
                engines.constants,
                partial(prompt_of, engines),
                private_prefix_cache(),
                ReferenceStates(),
            )
        )
        pieces = {decoder.submit(request): [np.zeros(0, np.float32)] for request in requests}
        for ticket, samples in decoder.run():
            pieces[ticket].append(samples)
        self.samples = [np.concatenate(found) for found in pieces.values()]

    def _keep(self, stream: Stream, component: str, inputs: Arrays, outputs: Arrays) -> None:
        if component == "code_predictor" and outputs:
            self.codes.append(outputs["chosen"].copy())


def prompt_of(engines: Engines, request: SpeechRequest) -> QwenPrompt:
    generator = np.random.default_rng(len(request.text))
    vector = generator.standard_normal(engines.constants.dim, dtype=np.float32)
    return QwenPrompt(generator.integers(0, 200, len(request.text)), 10, "english", vector)


def codes(engines: Engines, seed: int = 1, chunk_frames: int = 2, **sampling: Any) -> np.ndarray:
    """Codes int64 [T, K] of a text that is spoken alone."""
    options: dict[str, Any] = {
        "seed": seed,
        "chunk_frames": chunk_frames,
        "max_frames": FRAMES,
        "budget": None,
    }
    found = Spoken(engines, [SpeechRequest("aaaa", sampling=sampling or None, **options)])
    return np.concatenate(found.codes)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_setting_replaces_the_default_of_the_model_and_no_other(
    constants: QwenConstants, name: str
) -> None:
    part, setting = ("others", name[4:]) if name.startswith("sub_") else ("first", name)
    found, default = sampling_of(constants, {name: NEW[name]}), sampling_of(constants)
    changed = replace(getattr(default, part), **{setting: NEW[name]})
    assert changed != getattr(default, part)
    assert found == replace(default, **{part: changed})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", -0.1, "greater than or equal to 0"),
        ("temperature", float("nan"), ""),
        ("temperature", float("inf"), ""),
        ("temperature", 1e-4, "expected 0, or at least 0.001"),
        ("sub_temperature", -1, "greater than or equal to 0"),
        ("sub_temperature", 1e-40, "expected 0, or at least 0.001"),  # infinite logits in float32
        ("top_k", -1, "greater than or equal to 0"),
        ("top_k", 1.5, "integer"),
        ("top_k", float("inf"), "finite"),
        ("sub_top_k", float("nan"), "finite"),
        ("sub_top_k", 10**400, "less than or equal to"),
        ("top_p", 0, "greater than 0"),
        ("top_p", 1.01, "less than or equal to 1"),
        ("sub_top_p", 0, "greater than 0"),
        ("repetition_penalty", 0, "greater than 0"),
        ("repetition_penalty", 1e9, "less than or equal to 100"),
    ],
)
def test_a_wrong_value_is_named(engines: Engines, name: str, value: float, says: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} {value}: .*{says}"[:200]) as caught:
        next(qwen_task(engines).speak("Fine.", sampling={"top_p": 0.5, name: value}))
    assert caught.value.field == name


@pytest.mark.parametrize(
    "sampling",
    [
        {"warmth": 1},
        {"sub_repetition_penalty": 1.1},
        {"others_top_k": 5},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": None},
        {3: 3},
        [("temperature", 1)],
        "temperature",
        0.9,
    ],
)
def test_a_request_takes_numbers_of_known_names(sampling: Any) -> None:
    with pytest.raises(UsageError, match=r"^sampling .*: expected") as caught:
        SpeechRequest("Fine.", sampling=sampling)
    assert caught.value.field == "sampling"


@pytest.mark.parametrize("name", SAMPLING)
def test_a_model_that_draws_no_codes_refuses_every_setting(name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: this model draws no codes") as caught:
        next(ToyVoxtral().speak("Fine.", sampling={name: NEW[name]}))
    assert caught.value.field == name


def builder() -> PromptBuilder:
    component = stand_in(signature=stand_in(capacity=8))
    return PromptBuilder(stand_in(component=lambda name: component), stand_in(), CONSTANTS)


def test_a_submitted_request_of_such_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="this model draws no codes"):
        builder().build(SpeechRequest("Fine.", sampling=GREEDY))


def test_temperature_0_ignores_the_seed(engines: Engines) -> None:
    np.testing.assert_array_equal(codes(engines, 1, **GREEDY), codes(engines, 2, **GREEDY))
    assert not np.array_equal(codes(engines, 1), codes(engines, 2))


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 1, "sub_top_k": 1},
        {"top_p": 1e-6, "sub_top_p": 1e-6},
        {"temperature": 1e-3, "sub_temperature": 1e-3},
        {"temperature": 0, "sub_top_k": 1},
    ],
)
def test_settings_that_leave_one_code_are_greedy(engines: Engines, sampling: dict[str, Any]) -> None:
    np.testing.assert_array_equal(codes(engines, **sampling), codes(engines, **GREEDY))


@pytest.mark.parametrize(
    ("sampling", "is_first"), [({"temperature": 0}, True), ({"sub_temperature": 0}, False)]
)
def test_a_setting_is_of_the_first_code_or_of_the_others(
    engines: Engines, sampling: dict[str, int], is_first: bool
) -> None:
    """In the first frame, to which no other choice has led. A greedy code is the same for every seed."""
    seeds = range(4)
    found = np.stack([codes(engines, seed, **sampling)[0] for seed in seeds])
    drawn = np.stack([codes(engines, seed)[0] for seed in seeds])
    assert len(set(drawn[:, 0])) > 1
    if is_first:
        assert len(set(found[:, 0])) == 1
    else:
        assert np.array_equal(found[:, 0], drawn[:, 0]) and (found[:, 1:] != drawn[:, 1:]).any()


def test_the_penalty_decides_how_often_first_codes_repeat(engines: Engines) -> None:
    low, high = (len(set(codes(engines, **GREEDY, repetition_penalty=value)[:, 0])) for value in (0.01, 100))
    assert low < high == FRAMES


@pytest.mark.parametrize("sampling", [{}, GREEDY, NEW])
def test_the_codes_do_not_depend_on_the_chunks(engines: Engines, sampling: dict[str, Any]) -> None:
    whole = codes(engines, chunk_frames=FRAMES, **sampling)
    for size in (1, 4):
        np.testing.assert_array_equal(codes(engines, chunk_frames=size, **sampling), whole)


@pytest.mark.parametrize("slots", [2, 4])
def test_each_slot_has_its_own_settings(engines: Engines, slots: int) -> None:
    """Bit-identical to each request alone, because eager computes each slot separately."""
    different = (
        None,
        GREEDY,
        NEW,
        {"sub_temperature": 0},
        {"top_k": 3, "sub_top_p": 0.5},
        {"temperature": 2},
    )
    texts = [
        SpeechRequest("a" * 4, seed=1, sampling=sampling, max_frames=3 + index % 3, budget=None)
        for index, sampling in enumerate(different)
    ]
    alone = [Spoken(engines, [text]).samples[0] for text in texts]
    for found, expected in zip(Spoken(engines, texts, slots).samples, alone, strict=True):
        np.testing.assert_array_equal(found, expected)
    firsts = {each[:1920].tobytes() for each in alone}
    assert len(firsts) == len(alone)  # one seed and one text, so the settings make the difference


def test_settings_are_those_of_the_time_of_the_request(engines: Engines) -> None:
    sampling = dict(GREEDY)
    slots = QwenSlots(
        engines.eager.stream(),
        engines.constants,
        partial(prompt_of, engines),
        private_prefix_cache(),
        ReferenceStates(),
    )
    fill = slots.prepare(SpeechRequest("aaaa", sampling=sampling))
    sampling["temperature"] = -1
    list(fill(0, lambda: 1000))


@pytest.fixture
def say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], engines: Engines
) -> Callable[..., tuple[int, bytes, str]]:
    """Runs `say` in `tmp_path` with a voice file. Returns the exit code, the output file and the error."""
    monkeypatch.chdir(tmp_path)
    task = qwen_task(engines)
    vector = np.random.default_rng(0).standard_normal(engines.constants.dim, dtype=np.float32)
    Path("voice.safetensors").write_bytes(voice_content(Voice(vector), model_digest(task.bundle)))

    def run(*options: str, task: QwenTextToSpeech = task) -> tuple[int, bytes, str]:
        monkeypatch.setattr("voxport.runtime.opening.open_task", lambda *_: task)
        fixed = ("--voice", "voice.safetensors", "--max-frames", "4", "--bundle", "none", "-o", "out.wav")
        Path("out.wav").unlink(missing_ok=True)
        code = voxport(["say", "Hi.", *fixed, *options])
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("voxport: error")]
        return code, Path("out.wav").read_bytes() if code == 0 else b"", "".join(errors)

    return run


def test_options_of_say_reach_the_model(say: Callable[..., tuple[int, bytes, str]]) -> None:
    greedy = ("--temperature", "0", "--sub-temperature", "0")
    first, second, drawn = say(*greedy, "--seed", "1"), say(*greedy, "--seed", "2"), say("--seed", "1")
    assert first == second and first[0] == drawn[0] == 0 and first != drawn
    names = [f"--{name.replace('_', '-')}" for name in NEW]
    given = [part for name, value in zip(names, NEW.values(), strict=True) for part in (name, str(value))]
    assert say(*given, "--seed", "1")[1] not in (first[1], drawn[1])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--temperature", "-1"), "--temperature -1.0: should be greater than or equal to 0"),
        (("--sub-top-p", "2"), "--sub-top-p 2.0: should be less than or equal to 1"),
        (("--top-k", "0.5"), "--top-k: expected an integer, found '0.5'"),
    ],
)
def test_a_wrong_option_of_say_is_one_line(
    say: Callable[..., tuple[int, bytes, str]], options: tuple[str, str], says: str
) -> None:
    code, _, error = say(*options)
    assert code == 2 and says in error and not Path("out.wav").exists()


def test_options_of_a_model_that_draws_nothing(say: Callable[..., tuple[int, bytes, str]]) -> None:
    code, _, error = say("--sub-top-k", "4", task=ToyVoxtral())
    assert code == 2 and "--sub-top-k: this model draws no codes; leave out the setting" in error
