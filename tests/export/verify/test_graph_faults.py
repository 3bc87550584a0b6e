"""Verification finds faults that are planted in one graph of an artifact of Qwen3-TTS."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from support.export.codec_faults import WRONG_VALUES, drop_a_state
from support.export.faulty_engines import Engines, failed
from torch import nn

from voxport.export.verify.code_checks import OTHER_CODES, check_codes
from voxport.export.verify.component_checks import check_components, check_streaming
from voxport.export.verify.eager import EagerEngine
from voxport.export.verify.modes import Extent
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.quantize.modules import int8_per_block


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(random_checkpoint("qwen3_tts"), "none", cache=96)


def exchange(modules: nn.ModuleList) -> nn.ModuleList:
    first, second, *others = modules
    return nn.ModuleList([second, first, *others])


def next_table(embedding: Any) -> None:
    """Each book but the first, which has another size, is read from the table of the next one."""
    first, *others = embedding.tables
    embedding.tables = nn.ModuleList([first, *others[1:], others[0]])


def exchange_heads(predictor: Any) -> None:
    predictor.heads = exchange(predictor.heads)


def exchange_tables(predictor: Any) -> None:
    predictor.tables = exchange(predictor.tables)


def unchanged(module: object) -> None: ...


ONE_FRAME = {"codec_step.audio", "codec_step.states", "codec.audio in chunks"}
PREDICTED = {"code_predictor.logits", OTHER_CODES}


@pytest.mark.parametrize(
    ("graph", "fault", "found"),
    [
        *(("codec", fault, {"codec.audio", "codec.states", *ONE_FRAME}) for fault in WRONG_VALUES),
        ("codec", drop_a_state, ONE_FRAME),  # found in calls after others
        ("embed_codes", next_table, {"embed_codes.embeddings", OTHER_CODES, "codes, teacher-forced"}),
        ("code_predictor", exchange_heads, PREDICTED),
        ("code_predictor", exchange_tables, PREDICTED),
        *((graph, unchanged, set[str]()) for graph in ("codec", "embed_codes", "code_predictor")),
    ],
)
def test_a_fault_of_one_graph_is_found(
    engines: Engines, graph: str, fault: Callable[[Any], None], found: set[str]
) -> None:
    """By single calls, by chunks of the codec, and by codes."""
    right = engines.model.module
    module: Any = deepcopy(right(graph))
    fault(module)
    parts = {part.name: part for part in engines.components if part.graph == graph}
    artifact = EagerEngine(
        engines.components, lambda name: module if name in parts else right(name), "BSHD", int8_per_block
    )
    extent = Extent((0,), (1, 5), chunked=25, run_steps=8)
    context = replace(engines.context(artifact), components=parts, extent=extent)
    names = {*failed(check_components(context))}
    if graph == "codec":
        names |= {f"{name} in chunks" for name in failed(check_streaming(context))}
    else:
        names |= {*failed(check_codes(context))}
    assert names == found
