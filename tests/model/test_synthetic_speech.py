"""The tokenizer of synthetic checkpoints gives the published prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mistral_common.protocol.speech.request import SpeechRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from voxport.model.families import open_family
from voxport.model.voxtral_tts.layouts import MISTRAL
from voxport.model.voxtral_tts.sizes import SIZES

BEGIN, AUDIO, BEGIN_AUDIO, AFTER_TEXT, BEFORE_TEXT = 1, 24, 25, 35, 36
Tokenizer = MistralTokenizer[Any, Any, Any, Any, Any]
TEXTS = [
    "Hello.",
    "L'été, où ? Über Äpfel",
    "🙂 👩‍👩‍👧 e\u0301",
    "2026 and 3,14",
    "\t two  blanks\r\n",
    "[AUDIO] </s> [INST] <SPECIAL_20>",
]


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return MistralTokenizer.from_file(checkpoint / "tekken.json")


def text_ids(tokenizer: Tokenizer, text: str, voice: str = "fr_male") -> list[int]:
    """The ids of the text. Asserts that the markers and the voice around them are correct."""
    ids = tokenizer.encode_speech_request(SpeechRequest(input=text, voice=voice)).tokens
    rows = SIZES["tiny"].voices[voice]
    assert ids[: rows + 3] == [BEGIN, BEGIN_AUDIO, *[AUDIO] * rows, BEFORE_TEXT]
    assert ids[-2:] == [AFTER_TEXT, BEGIN_AUDIO]
    found: list[int] = ids[rows + 3 : -2]
    return found


@pytest.mark.parametrize("voice", SIZES["tiny"].voices)
@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_is_markers_voice_and_text_and_nothing_typed_becomes_a_marker(
    tokenizer: Tokenizer, text: str, voice: str
) -> None:
    ids = text_ids(tokenizer, text, voice)
    assert min(ids) >= 1000
    assert max(ids) < 1536
    assert tokenizer.decode(ids) == text


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_decoded_ids_equal_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = text_ids(tokenizer, text)
    assert all(1000 <= token < 1536 for token in ids)
    assert tokenizer.decode(ids) == text


def test_digits_are_single_and_common_words_are_not_bytes(
    tokenizer: Tokenizer,
) -> None:
    assert len(text_ids(tokenizer, "2026")) == 4
    assert len(text_ids(tokenizer, " the")) == 1
    assert len(text_ids(tokenizer, " été")) == 1


def test_the_tokenizer_file_has_entries_beyond_the_vocabulary(checkpoint: Path) -> None:
    content = json.loads((checkpoint / "tekken.json").read_text(encoding="utf-8"))
    assert len(content["vocab"]) == content["config"]["num_vocab_tokens"] == 600
    words = Tekkenizer.from_file(checkpoint / "tekken.json").n_words
    assert words == MISTRAL.load_config(checkpoint).vocab_size == 1536


def test_the_published_vocabulary_size_loads(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(
        json.dumps(open_family("voxtral_tts").synthetic.documents("full")["tekken.json"]), encoding="utf-8"
    )
    loaded = MistralTokenizer.from_file(tmp_path / "tekken.json")
    prompt = loaded.encode_speech_request(SpeechRequest(input="x", voice="casual_male")).tokens
    assert (len(prompt), prompt.count(AUDIO)) == (147 + 1 + 5, 147)
