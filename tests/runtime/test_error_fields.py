"""Errors of the text-to-speech library name the wrong field, for which a command line shows its flag."""

from types import SimpleNamespace

import numpy as np
import pytest

from bundle.errors import UsageError
from runtime.families.base import BenchSettings
from runtime.families.voxtral_tts.bench import BENCH
from runtime.families.voxtral_tts.decoder import BATCHED
from runtime.families.voxtral_tts.voices import choose_voice
from runtime.speech_request import SpeechRequest


@pytest.mark.parametrize("field", ["max_frames", "chunk_frames", "seed"])
def test_a_wrong_number_of_a_request(field):
    with pytest.raises(UsageError, match=f"^{field} -1: expected an int of at least") as caught:
        SpeechRequest("Fine.", **{field: -1})
    assert caught.value.field == field


@pytest.mark.parametrize("asked", [None, "nobody", "speaker.wav", "missing.safetensors"])
def test_a_wrong_voice(asked, tmp_path):
    bundle = SimpleNamespace(folder=tmp_path, manifest=SimpleNamespace(voices={}))
    with pytest.raises(UsageError, match=r"^voice") as caught:
        choose_voice(bundle, asked, 8)
    assert caught.value.field == "voice"


def test_a_wrong_number_of_streams():
    settings = BenchSettings(np.zeros((0, 8), np.float32), counts=(1, 9))
    components = dict.fromkeys(BATCHED, SimpleNamespace(max_batch=4))
    with pytest.raises(UsageError, match=r"^streams 1,9: one call of this bundle serves 1 to 4") as caught:
        BENCH.check_counts(components, settings.counts)
    assert caught.value.field == "streams"
