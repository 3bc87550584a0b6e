"""The choice of semantic codes: which rows of the logits may win."""

import numpy as np
import pytest
from support.runtime import toy_speech

from voxport.bundle.constants.voxtral_tts import EMPTY_AUDIO, END_AUDIO, FIRST_CODE
from voxport.runtime.families.voxtral_tts.decoder import semantic_codes

CODES, ROWS = 6, 12  # 2 special rows, 6 codes and 4 rows of padding


CONSTANTS = toy_speech.CONSTANTS.model_copy(update={"semantic_codes": CODES})


def logits_with(*winners: int) -> np.ndarray:
    """float32 [len(winners), ROWS], whose row i is largest at winners[i]. Rank 2 has FIRST_CODE + 1."""
    logits = np.zeros((len(winners), ROWS), np.float32)
    logits[:, FIRST_CODE + 1] = 1
    for row, winner in enumerate(winners):
        logits[row, winner] = 2
    return logits


LAST = FIRST_CODE + CODES - 1


@pytest.mark.parametrize(
    ("winner", "may_end", "chosen"),
    [
        (END_AUDIO, True, END_AUDIO),
        (END_AUDIO, False, FIRST_CODE + 1),
        (FIRST_CODE, True, FIRST_CODE),
        (LAST, True, LAST),
        (EMPTY_AUDIO, True, FIRST_CODE + 1),
        (LAST + 1, True, FIRST_CODE + 1),  # padding
        (ROWS - 1, True, FIRST_CODE + 1),
    ],
)
def test_codes_and_the_end_can_be_chosen_and_no_other_row(winner: int, may_end: bool, chosen: int) -> None:
    logits = logits_with(winner)
    assert semantic_codes(logits, CONSTANTS, may_end).tolist() == [[chosen]]
    np.testing.assert_array_equal(logits, logits_with(winner))


def test_each_row_of_a_batch_is_masked() -> None:
    found = semantic_codes(logits_with(EMPTY_AUDIO, END_AUDIO, ROWS - 1), CONSTANTS)
    assert found.tolist() == [[FIRST_CODE + 1], [END_AUDIO], [FIRST_CODE + 1]]
