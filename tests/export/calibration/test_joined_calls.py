"""Recorded calls of a graph become one call."""

from dataclasses import replace

import pytest
import torch
from support.export.calibrations import of_family, recorded

from voxport.export.calibration import record
from voxport.export.calibration.graph import GraphReplay
from voxport.export.calibration.record import join
from voxport.export.calibration.replay import Collector


@pytest.mark.parametrize(("family", "graph"), [("qwen3_asr", "decoder"), ("voxtral_tts", "backbone")])
def test_all_sequences_together_may_have_more_rows_than_a_cache(family: str, graph: str) -> None:
    resolved, job = of_family(family)
    calls, source = recorded(resolved, job), resolved.source.checkpoint
    replays = [GraphReplay(replace(resolved, cache_length=rows), graph, calls) for rows in (2048, 64)]
    found = [replay.run(Collector(replay.weights_of(source)), source)[0] for replay in replays]
    assert found[0].shape[1] > 64 and torch.equal(*found)


def test_long_recordings_are_cut_and_a_part_of_many_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved, job = of_family("voxtral_realtime")
    calls = recorded(resolved, job)
    components = [each for each in resolved.components("BSHD") if each.graph == "decoder"]
    own = 3 * [call for name, call in calls if name in {each.name for each in components}]
    whole = join(components, own)
    assert whole.last and whole.lengths == 3 * [whole.lengths[0]]
    second = whole.last[1] + 1  # rows of the first two calls
    monkeypatch.setattr(record, "LONGEST", second)
    cut = join(components, own)
    assert cut.last and cut.lengths == 3 * [second] and cut.last[:2] == whole.last[:2]
    assert second < whole.lengths[0]
    assert torch.equal(cut.arguments[0][:, :second], whole.arguments[0][:, :second])
    monkeypatch.setattr(record, "ROWS", 3 * second - 1)
    assert join(components, own).lengths == 2 * [second]
