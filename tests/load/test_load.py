"""A few seconds of load. Times are not compared: `python -m load` does that on a quiet machine."""

import pytest

from load.__main__ import LoadOptions, run


@pytest.mark.slow  # takes several seconds
def test_every_accepted_answer_is_whole_and_every_refusal_has_a_time_to_retry():
    found = run(LoadOptions(seconds=5, clients=80, sockets=8))
    assert found["examples_of_wrong"] == [] and found["wrong"] == 0
    assert found["served"]["talking"] > 0 and found["served"]["utterance"] > 0
    assert found["refused"]["503"] > 0 and found["served"]["garbage"] > 0
