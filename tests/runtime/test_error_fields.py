"""Errors of the text-to-speech library name the wrong field, for which a command line shows its flag."""

from pathlib import Path
from typing import Any

import pytest
from support.stand_ins import stand_in

from voxport.bundle.errors import UsageError
from voxport.runtime.bench import check_streams
from voxport.runtime.families.voxtral_tts.task import choose_voice
from voxport.runtime.speech_request import SpeechRequest


@pytest.mark.parametrize("field", ["max_frames", "chunk_frames", "seed"])
def test_a_wrong_number_of_a_request(field: str) -> None:
    number: dict[str, Any] = {field: -1}
    with pytest.raises(UsageError, match=f"^{field} -1: expected an int of at least") as caught:
        SpeechRequest("Fine.", **number)
    assert caught.value.field == field


@pytest.mark.parametrize("asked", [None, "nobody", "speaker.wav", "missing.safetensors"])
def test_a_wrong_voice(asked: str | None, tmp_path: Path) -> None:
    bundle = stand_in(folder=tmp_path, manifest=stand_in(voices={}))
    with pytest.raises(UsageError, match=r"^voice") as caught:
        choose_voice(bundle, asked, 8)
    assert caught.value.field == "voice"


def test_a_wrong_number_of_streams() -> None:
    with pytest.raises(UsageError, match=r"^streams 1,9: one call of this bundle serves 1 to 4") as caught:
        check_streams((1, 9), 4)
    assert caught.value.field == "streams"
