"""The choice of semantic codes: which rows of the logits may win."""

import numpy as np
import pytest

from voxport.bundle.constants.voxtral_tts import EMPTY_AUDIO, END_AUDIO, FIRST_CODE, Constants
from voxport.runtime.families.voxtral_tts.decoder import semantic_codes

CODES, ROWS = 6, 12  # 2 special rows, 6 codes and 4 rows of padding


@pytest.fixture
def constants() -> Constants:
    return Constants(
        sample_rate=24000,
        samples_per_frame=1920,
        dim=8,
        vocab_size=100,
        n_codebooks=3,
        semantic_codes=CODES,
        acoustic_levels=21,
        euler_steps=7,
        bos_id=1,
        audio_id=24,
        begin_audio_id=25,
        first_frame="audio_token",
    )


def logits_with(*winners: int) -> np.ndarray:
    """float32 [len(winners), ROWS], whose row i is largest at winners[i]. Rank 2 has FIRST_CODE + 1."""
    logits = np.zeros((len(winners), ROWS), np.float32)
    logits[:, FIRST_CODE + 1] = 1
    for row, winner in enumerate(winners):
        logits[row, winner] = 2
    return logits


@pytest.mark.parametrize("winner", [END_AUDIO, FIRST_CODE, FIRST_CODE + CODES - 1])
def test_the_end_and_every_code_can_be_chosen(constants: Constants, winner: int) -> None:
    assert semantic_codes(logits_with(winner), constants).tolist() == [[winner]]


def test_a_frame_that_may_not_end_the_speech_has_another_code(constants: Constants) -> None:
    assert semantic_codes(logits_with(END_AUDIO), constants, may_end=False).tolist() == [[FIRST_CODE + 1]]


@pytest.mark.parametrize("winner", [EMPTY_AUDIO, FIRST_CODE + CODES, ROWS - 1])
def test_empty_audio_and_padding_are_never_chosen(constants: Constants, winner: int) -> None:
    assert semantic_codes(logits_with(winner), constants).tolist() == [[FIRST_CODE + 1]]


def test_each_row_of_a_batch_is_masked(constants: Constants) -> None:
    found = semantic_codes(logits_with(EMPTY_AUDIO, END_AUDIO, ROWS - 1), constants)
    assert found.tolist() == [[FIRST_CODE + 1], [END_AUDIO], [FIRST_CODE + 1]]


def test_the_logits_stay_unchanged(constants: Constants) -> None:
    logits = logits_with(EMPTY_AUDIO)
    before = logits.copy()
    semantic_codes(logits, constants)
    np.testing.assert_array_equal(logits, before)
