"""Numbers of a manifest that would take all memory or time are refused by name."""

from collections.abc import Callable
from typing import Any

import pytest

from voxport.bundle.constants.voxtral_realtime import RealtimeConstants
from voxport.bundle.constants.voxtral_tts import VoxtralConstants
from voxport.bundle.errors import IntegrityError
from voxport.runtime.audio.mel import LogMel
from voxport.runtime.families import parse_constants
from voxport.runtime.families.voxtral_realtime.encoder import mel_settings

SPEECH = {
    "sample_rate": 24000,
    "samples_per_frame": 1920,
    "dim": 3072,
    "vocab_size": 131072,
    "n_codebooks": 37,
    "semantic_codes": 8192,
    "acoustic_levels": 21,
    "euler_steps": 7,
    "bos_id": 1,
    "audio_id": 24,
    "begin_audio_id": 25,
    "first_frame": "prefill",
}
TEXT = {
    "sample_rate": 16000,
    "samples_per_token": 1280,
    "n_mels": 128,
    "hop_length": 160,
    "window_size": 400,
    "log_mel_least": -6.5,
    "dim": 3072,
    "vocab_size": 131072,
    "left_pad_tokens": 32,
    "flush_tokens": 10,
    "bos_id": 1,
    "eos_id": 2,
    "pad_id": 32,
    "word_id": 33,
    "first_text_id": 1000,
    "delays_ms": [480, 2400],
    "delays": [6, 30],
}


def speech(**changes: object) -> Any:
    return parse_constants(VoxtralConstants, SPEECH | changes)


def text(**changes: int) -> RealtimeConstants:
    return parse_constants(RealtimeConstants, TEXT | changes)


def test_published_numbers_are_accepted() -> None:
    assert speech().euler_steps == 7
    assert text().left_pad_tokens == 32


@pytest.mark.parametrize(
    "parse, name, value",
    [
        (speech, "sample_rate", 1),
        (speech, "sample_rate", 10**9),
        (speech, "n_codebooks", 10**6),
        (speech, "euler_steps", 10**6),
        (text, "sample_rate", 1),
        (text, "samples_per_token", 2**20),
        (text, "n_mels", 10**6),
        (text, "window_size", 10**6),
        (text, "window_size", 1),
        (text, "hop_length", 10**6),
        (text, "left_pad_tokens", 10**6),
        (text, "flush_tokens", 10**6),
        (text, "delays", [6, 10**6]),
        (text, "log_mel_least", float("nan")),
    ],
)
def test_numbers_far_above_any_model_are_refused(
    parse: Callable[..., object], name: str, value: float | list[int]
) -> None:
    with pytest.raises(IntegrityError, match=f"manifest.json: constants: {name}"):
        parse(**{name: value})


def test_a_window_of_many_hops_is_refused() -> None:
    with pytest.raises(IntegrityError, match="at most 16 times hop_length"):
        text(hop_length=1)


@pytest.mark.parametrize("change", [{"sample_rate": 384_000}, {"window_size": 40}, {"n_mels": 1024}])
def test_a_front_end_without_samples_for_its_bands_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(IntegrityError, match="mel bands do not fit a window"):
        LogMel(mel_settings(text(**change)))
