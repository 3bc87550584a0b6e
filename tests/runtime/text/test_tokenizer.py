"""Prompts equal those of mistral_common. A damaged tekken.json is a one-line error."""

import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.protocol.speech.request import SpeechRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from support.runtime.tekken_fixture import MARKERS, MERGES, SPECIALS, VOICES, tekken, write_tekken

from voxport.bundle.errors import IntegrityError, UsageError, VoxportError
from voxport.runtime.families.voxtral_tts.task import SpeechTokenizer
from voxport.runtime.text.cleanup import MAX_TEXT_CHARACTERS

TEXTS = (
    "hello",
    "Hello hello, the thé!",
    "Ça déjà là: naïve Ångström, e\u0301",
    "👩‍👩‍👧 🫨 ok",
    "12 and 1234567, ١٢",
    "tab\there\t\t",
    "  lead,   runs  and trail   ",
    "one\ntwo\r\n\r\n three\n",
    "語を話す。 Привет",
    "typed [AUDIO] </s> <s>[BEGIN_AUDIO] <SPECIAL_37> [/INST]",
    "",
)
PIECES = [*MARKERS.values(), *MERGES, *TEXTS, " ", "\n", "0"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tekken(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> SpeechTokenizer:
    return SpeechTokenizer(path)


@pytest.fixture(scope="module")
def reference(path: Path) -> MistralTokenizer[Any, Any, Any, Any, Any]:
    return MistralTokenizer.from_file(path)


def prompt(tokenizer: SpeechTokenizer, text: str, rows: int) -> list[int]:
    return [*tokenizer.voice_prefix(rows), *tokenizer.encode(text)]


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    voice=st.sampled_from(list(VOICES)),
)
def test_any_text_gives_the_prompt_of_mistral_common(
    tokenizer: SpeechTokenizer, reference: MistralTokenizer[Any, Any, Any, Any, Any], text: str, voice: str
) -> None:
    expected = reference.encode_speech_request(SpeechRequest(input=text, voice=voice)).tokens
    assert prompt(tokenizer, text, VOICES[voice]) == expected


def test_a_prompt_has_its_markers_in_the_published_order(tokenizer: SpeechTokenizer) -> None:
    """Its placeholders are as many as the rows of the voice, which no voice in the file has."""
    hello = SPECIALS + 256 + MERGES.index("hello")
    assert prompt(tokenizer, "hello", 4) == [1, 25, 24, 24, 24, 24, 36, hello, 35, 25]


def count(tokenizer: SpeechTokenizer, text: str) -> int:
    """Ids of the text without its markers."""
    return len(prompt(tokenizer, text, 1)) - len(prompt(tokenizer, "", 1))


def test_ranks_beyond_the_vocabulary_size_are_dropped(tokenizer: SpeechTokenizer) -> None:
    assert max(prompt(tokenizer, "lo o ", 1)) < tekken()["config"]["default_vocab_size"]
    assert count(tokenizer, "lo") == 2


def test_a_file_without_voices_still_encodes(tmp_path: Path) -> None:
    content = tekken()
    del content["audio"]
    assert prompt(SpeechTokenizer(write_tekken(tmp_path, content)), "hello", 2)[:5] == [1, 25, 24, 24, 36]


def test_a_voice_without_rows_is_an_error(tokenizer: SpeechTokenizer) -> None:
    with pytest.raises(VoxportError, match="0 rows"):
        prompt(tokenizer, "hello", 0)


def test_a_text_too_long_to_be_split_is_a_usage_error(tokenizer: SpeechTokenizer) -> None:
    assert count(tokenizer, " " * MAX_TEXT_CHARACTERS)
    with pytest.raises(UsageError, match=str(MAX_TEXT_CHARACTERS + 1)):
        count(tokenizer, " " * (MAX_TEXT_CHARACTERS + 1))


def test_loading_logs_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prompt(SpeechTokenizer(path), "hello", 1)
    assert not caplog.records


def test_importing_the_modules_loads_no_heavy_package() -> None:
    heavy = "{'mistral_common', 'soundfile', 'soxr', 'torch'}"
    code = "import sys, runtime.audio.files, runtime.text.preparation;"
    code += f"sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def without(*keys: str) -> dict[str, Any]:
    content = tekken()
    inner: Any = content
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return content


def with_value(key: str, value: object, *parents: str | int) -> dict[str, Any]:
    content = tekken()
    inner: Any = content
    for parent in parents:
        inner = inner[parent]
    inner[key] = value
    return content


BROKEN = {
    "bare array": (tekken()["vocab"], "bare array"),
    "a number": (7, "holds a int"),
    "no config": (without("config"), "config is missing"),
    "no vocab": (without("vocab"), "vocab is missing"),
    "vocab not a list": (with_value("vocab", {}), "vocab is missing or no list"),
    "no pattern": (without("config", "pattern"), "'pattern'"),
    "no vocabulary size": (without("config", "default_vocab_size"), "'default_vocab_size'"),
    "unknown version": (with_value("version", "v999", "config"), "v999"),
    "bad pattern": (with_value("pattern", "(((", "config"), "not a tokenizer"),
    "too few ranks": (with_value("vocab", tekken()["vocab"][:100]), "ranks and sizes"),
    "bytes out of order": (with_value("vocab", tekken()["vocab"][::-1]), "ranks and sizes"),
    "bytes not base64": (with_value("token_bytes", "abc", "vocab", 256), "not a tokenizer"),
    "endless special tokens": (with_value("default_num_special_tokens", 10**9, "config"), "at most 65536"),
    "special tokens not a number": (with_value("default_num_special_tokens", None, "config"), "is None"),
    "no speech markers": (with_value("special_tokens", tekken()["special_tokens"][:20]), r"\[AUDIO\]"),
    "default special tokens": (without("special_tokens"), r"\[AUDIO\]"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_an_integrity_error_of_one_line_with_its_name(tmp_path: Path, case: str) -> None:
    content, reason = BROKEN[case]
    path = write_tekken(tmp_path, content)
    with pytest.raises(IntegrityError, match=reason) as caught:
        SpeechTokenizer(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 400


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_json_is_an_integrity_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tekken.json"
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="cannot be read as JSON"):
        SpeechTokenizer(path)


def test_a_missing_file_is_an_integrity_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="missing"):
        SpeechTokenizer(tmp_path / "tekken.json")
