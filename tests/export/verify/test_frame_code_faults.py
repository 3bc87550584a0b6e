"""Verification finds codes of a Qwen3-TTS frame that are taken for those of another book."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from support.export.faulty_engines import Engines, failed
from torch import nn

from voxport.export.verify.code_checks import OTHER_CODES, check_codes
from voxport.export.verify.component_checks import check_components
from voxport.export.verify.context import Extent
from voxport.export.verify.eager import EagerEngine
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.quantize.modules import int8_per_block


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(random_checkpoint("qwen3_tts"), "none", cache=96)


def found(engines: Engines, graph: str, fault: Callable[[Any], None]) -> set[str]:
    """The checks of single calls and of codes that fail where a graph of the artifact has this fault."""
    right = engines.model.module
    module: Any = deepcopy(right(graph))
    fault(module)
    artifact = EagerEngine(
        engines.components, lambda name: module if name == graph else right(name), "BSHD", int8_per_block
    )
    parts = {part.name: part for part in engines.components if part.graph == graph}
    context = replace(engines.context(artifact), components=parts, extent=Extent((0,), (1, 5), run_steps=8))
    codes = failed(check_codes(context, engines.workload, engines.constants))
    return {*failed(check_components(context)), *codes}


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


@pytest.mark.parametrize("graph", ["embed_codes", "code_predictor"])
def test_a_right_artifact_passes(engines: Engines, graph: str) -> None:
    assert found(engines, graph, unchanged) == set()


def test_codes_embedded_with_the_table_of_the_next_book(engines: Engines) -> None:
    assert "embed_codes.embeddings" in found(engines, "embed_codes", next_table)


@pytest.mark.parametrize("fault", [exchange_heads, exchange_tables])
def test_steps_of_the_predictor_in_another_order(engines: Engines, fault: Callable[[Any], None]) -> None:
    assert {"code_predictor.logits", OTHER_CODES} <= found(engines, "code_predictor", fault)
