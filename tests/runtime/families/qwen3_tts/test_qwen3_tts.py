"""What a Qwen3-TTS bundle takes: voices, instructions and languages."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.stand_ins import stand_in

from voxport.bundle.constants.qwen3_tts import QwenConstants, SamplingConstants
from voxport.bundle.errors import UsageError
from voxport.runtime.families.qwen3_tts.decoder import sampling_of
from voxport.runtime.families.qwen3_tts.prompt import (
    PromptBuilder,
    Reference,
    Voice,
    code_of_name,
    estimated_frames,
    language_name,
)
from voxport.runtime.families.qwen3_tts.voices import choose_voice, model_digest, voice_content
from voxport.runtime.speech_request import TEXT_LAYOUTS

DIM, BOOKS = 4, 3
IDS = {
    name: index
    for index, name in enumerate(QwenConstants.model_fields)
    if name.endswith("_id") and name != "codec_language_id"
}
BASE = QwenConstants(
    **IDS,
    sample_rate=24000,
    samples_per_frame=1920,
    dim=DIM,
    n_codebooks=BOOKS,
    vocab_size=90,
    first_codes=20,
    other_codes=10,
    text_vocab_size=100,
    codec_language_id={"english": 30, "chinese": 31},
    speakers={},
    dialects={},
    kind="base",
    size="0b6",
    max_frames=8191,
    sampling_defaults=SamplingConstants(
        temperature=0.9,
        top_k=50,
        top_p=1,
        repetition_penalty=1.05,
        others_temperature=0.9,
        others_top_k=50,
        others_top_p=1,
    ),
)
CUSTOM = BASE.model_copy(update={"kind": "custom_voice", "speakers": {"ryan": 40, "eric": 41}})
DESIGN = BASE.model_copy(update={"kind": "voice_design"})
TOKENIZER = stand_in(newline=9, encode=lambda text: [ord(letter) % 120 for letter in text])
VECTOR = np.linspace(-1, 1, DIM, dtype=np.float32)
VOICE = Voice(VECTOR, Reference(np.array([1, 2]), np.arange(6).reshape(2, BOOKS)))


def bundle(**voices: str) -> Any:
    job = stand_in(source=stand_in(files={}))
    return stand_in(manifest=stand_in(voices=voices), folder=Path("bundle"), job=job)


def test_a_voice_file_gives_back_the_voice(tmp_path: Path) -> None:
    (tmp_path / "anna.safetensors").write_bytes(voice_content(VOICE, model_digest(bundle())))
    found = choose_voice(bundle(), BASE, str(tmp_path / "anna.safetensors"))
    np.testing.assert_array_equal(found.speaker, VECTOR)
    assert found.reference and VOICE.reference
    np.testing.assert_array_equal(found.reference.codes, VOICE.reference.codes)
    np.testing.assert_array_equal(found.reference.text, VOICE.reference.text)
    (tmp_path / "bare.safetensors").write_bytes(voice_content(Voice(VECTOR), model_digest(bundle())))
    assert choose_voice(bundle(), BASE, str(tmp_path / "bare.safetensors")).reference is None


def test_a_voice_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "anna.safetensors").write_bytes(voice_content(VOICE, "0123"))
    with pytest.raises(UsageError, match=r"anna.*made with another checkpoint"):
        choose_voice(bundle(), BASE, str(tmp_path / "anna.safetensors"))


CODES, TEXT = np.zeros((2, BOOKS), np.int64), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"speaker_embedding": np.zeros(5, np.float32)}, r"a vector of shape \[5\], the model has \[4\]"),
        ({"speaker_embedding": np.zeros(DIM, np.float64)}, "float64"),
        ({"speaker_embedding": np.full(DIM, np.nan, np.float32)}, "not finite"),
        ({"codes": CODES}, "speaker_embedding"),
        ({"speaker_embedding": VECTOR, "codes": CODES}, "text_ids"),
        ({"speaker_embedding": VECTOR, "text_ids": TEXT}, "codes"),
        ({"speaker_embedding": VECTOR, "codes": CODES[:, :2].copy(), "text_ids": TEXT}, r"expected \[T, 3\]"),
        ({"speaker_embedding": VECTOR, "codes": CODES[:0], "text_ids": TEXT}, r"expected \[T, 3\]"),
        ({"speaker_embedding": VECTOR, "codes": CODES + 15, "text_ids": TEXT}, "codes.*does not have"),
        ({"speaker_embedding": VECTOR, "codes": CODES, "text_ids": TEXT - 1}, "text_ids.*does not have"),
        ({"speaker_embedding": VECTOR, "other": TEXT}, "other"),
    ],
)
def test_voices_of_another_model_and_damaged_ones_are_refused(
    tmp_path: Path, arrays: dict[str, Any], says: str
) -> None:
    save_file(arrays, tmp_path / "voice.safetensors")
    with pytest.raises(UsageError, match=says):
        choose_voice(bundle(), BASE, str(tmp_path / "voice.safetensors"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "voice.safetensors")
    with pytest.raises(UsageError, match="not a file"):
        choose_voice(bundle(), BASE, str(tmp_path / "voice.safetensors"))


def test_voices_by_name() -> None:
    assert choose_voice(bundle(), CUSTOM, "Ryan").speaker == "ryan"
    assert choose_voice(bundle(), CUSTOM, None).speaker == "eric"  # the first one
    assert choose_voice(bundle(), DESIGN, None).speaker is None
    with pytest.raises(UsageError, match="voice nobody: unknown voice; there are eric, ryan"):
        choose_voice(bundle(), CUSTOM, "nobody")
    with pytest.raises(UsageError, match="voxport voice add"):
        choose_voice(bundle(), BASE, None)


@pytest.mark.parametrize("name", ["ref.wav", "folder/REF.MP3"])
def test_a_recording_in_place_of_a_voice_is_named(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"voice {name}: a recording cannot be used as a voice.*voice add NAME {name}"
    ):
        choose_voice(bundle(), BASE, name)


@pytest.mark.parametrize(
    ("constants", "voice", "fields", "says"),
    [
        (BASE, VOICE, {"instruct": "Cheerful."}, "takes no instruction"),
        (BASE, Voice(), {}, "the voice of a recording"),
        (CUSTOM, Voice(VECTOR), {}, "speaks with eric, ryan"),
        (DESIGN, Voice("ryan"), {}, "has no voices"),
        (BASE, VOICE, {"text": "\nHi."}, "begins with a line break"),
        (BASE, VOICE, {"text": ""}, "at least one word"),
        (BASE, VOICE, {"text": "a" * 500_001}, "at most 500000"),
        (BASE, VOICE, {"text": "w"}, "gives id 119, the model has 100 ids"),
        (BASE, VOICE, {"text": " "}, "at least one word"),
        *(
            (DESIGN, Voice(), {"instruct": instruct}, f"^instruct.*{says}")
            for instruct, says in (
                ("\nCalm.", "begins with a line break"),
                ("", "at least one word"),
                (" \t", "at least one word"),
                ("a" * 500_001, "at most 500000"),
                ("w", "gives id 119, the model has 100 ids"),
                ("1\0", "NUL character at index 1"),
                ("1\ud800", "lone surrogate"),
            )
        ),
        (CUSTOM, Voice("ryan"), {"instruct": "\n"}, "instruct.*line break"),  # although it is left out
    ],
)
def test_what_a_model_does_not_take_is_refused_by_name(
    constants: QwenConstants, voice: Voice, fields: dict[str, str], says: str
) -> None:
    arguments: dict[str, Any] = {"text": "1", "voice": voice} | fields
    with pytest.raises(UsageError, match=says):
        PromptBuilder(TOKENIZER, constants).build(**arguments)


def test_the_small_model_leaves_an_instruction_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    large = CUSTOM.model_copy(update={"size": "1b7"})
    assert PromptBuilder(TOKENIZER, CUSTOM).build("1", Voice("ryan"), instruct="1").instruct is None
    assert "0.6B CustomVoice" in caplog.text
    instruct = PromptBuilder(TOKENIZER, large).build("1", Voice("ryan"), instruct="1").instruct
    assert instruct is not None
    ids = instruct.tolist()
    ends = [IDS["im_start_id"], IDS["im_end_id"]]
    assert [ids[0], *ids[-2:]] == [*ends, TOKENIZER.newline]


@pytest.mark.parametrize(("constants", "streams"), [(BASE, True), (CUSTOM, False)])
def test_the_layout_of_the_published_package_is_the_default(constants: QwenConstants, streams: bool) -> None:
    voice = VOICE if constants is BASE else Voice("ryan")
    assert PromptBuilder(TOKENIZER, constants).build("1", voice).streaming is streams
    for layout in TEXT_LAYOUTS:
        prompt = PromptBuilder(TOKENIZER, constants).build("1", voice, layout=layout)
        assert prompt.streaming is (layout == "streaming")


def test_languages() -> None:
    names = ("English", "en", "en-US", "zh_CN", "Auto", "Sichuan_dialect")
    expected = ["english", "english", "english", "chinese", "auto", "sichuan_dialect"]
    ids = {"english": 30, "chinese": 31, "sichuan_dialect": 32}
    constants = BASE.model_copy(update={"codec_language_id": ids})
    assert [language_name(name, constants) for name in names] == expected
    assert [code_of_name(name) for name in ("english", "sichuan_dialect", "auto")] == ["en", "zh", None]


@pytest.mark.parametrize("asked", ["fr", "French", "sichuan_dialect", "Klingon", "", "Klingonese language"])
def test_an_unknown_language_is_one_line_with_those_that_the_model_has(asked: str) -> None:
    has = "this model does not speak it; it has auto, chinese, english, zh, en"
    with pytest.raises(UsageError, match=f"^language {asked!r}: {has}$") as caught:
        language_name(asked, BASE)
    assert caught.value.field == "language"


def test_a_chinese_character_takes_as_long_as_several_letters() -> None:
    assert estimated_frames("今天天气很好。") > 3 * estimated_frames("weather")


def test_sampling_follows_the_checkpoint() -> None:
    greedy = BASE.sampling_defaults.model_copy(update={"temperature": 0.0})
    found = sampling_of(BASE.model_copy(update={"sampling_defaults": greedy}))
    assert (found.first.temperature, found.others.temperature) == (0, 0.9)
    assert replace(found.first, temperature=0.9) == sampling_of(BASE).first


@pytest.mark.parametrize(
    ("constants", "follows"),
    [
        (BASE, False),
        (CUSTOM, False),  # of the size that drops them
        (CUSTOM.model_copy(update={"size": "1b7"}), True),
        (DESIGN, True),
    ],
)
def test_which_models_follow_instructions(constants: QwenConstants, follows: bool) -> None:
    assert PromptBuilder(TOKENIZER, constants).follows_instructions is follows
