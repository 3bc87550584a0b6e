"""The embedded trained models: one speaks sentences that it was not trained on, and the other hears them."""

from pathlib import Path

import pytest

from voxport.export.evaluation.recognition import BundleRecogniser
from voxport.export.evaluation.sentences import HELD_OUT, read_sentences
from voxport.export.evaluation.speech import evaluate_speech
from voxport.runtime.opening import open_task
from voxport.runtime.text_to_speech import TextToSpeech

SENTENCES = 10
# Of about 70 words. 100 sentences have 5 % (docs/evaluation.md), noise or silence has 100 %. With 5 %
# for each word by itself, more than 20 % are wrong in one of 600,000 samples (binomial distribution).
MAX_WER = 0.2


@pytest.mark.slow
@pytest.mark.parametrize("voice", ["clear_female", "clear_male"])
def test_held_out_sentences_are_spoken_and_heard(trained_bundles: dict[str, Path], voice: str) -> None:
    speaker = open_task(TextToSpeech, trained_bundles["voxtral_tts"])
    assert voice in speaker.voices()
    recogniser = BundleRecogniser(trained_bundles["voxtral_realtime"])
    sentences = read_sentences(HELD_OUT, SENTENCES)
    figures, rows = evaluate_speech(speaker, None, recogniser, sentences, {"voice": voice})
    assert figures["wer"] <= MAX_WER, [row["transcript"] for row in rows]
    assert figures["wer_recordings"] == 0
    assert figures["not_ended"] == figures["stopped_early"] == 0
