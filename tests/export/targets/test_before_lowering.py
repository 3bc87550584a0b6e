"""Before a graph is lowered: weights are loaded, and the module fits its signature."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.model.changed import changed

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import ExportRequest
from voxport.bundle.spec import LayoutName, TensorSpec
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets.base import Graph
from voxport.export.verify.eager import check_signatures
from voxport.quantize.modules import float_activations

LAYOUT: LayoutName = "BSHD"


@pytest.fixture
def graph(checkpoint: Path) -> Graph:
    """The codec: outputs with a multiple of a dimension, states, and two components."""
    request = ExportRequest(quant="none", options={}, cache_length=64)
    return Model(resolve(Source(checkpoint), request), LAYOUT).graph("codec")


def with_output(graph: Graph, **changes: Any) -> Graph:
    """The graph with another specification of the first output of its first component."""
    first, *others = graph.components
    output: TensorSpec = replace(first.signature.outputs[0], **changes)
    signature = replace(first.signature, outputs=(output, *first.signature.outputs[1:]))
    return replace(graph, components=(replace(first, signature=signature), *others))


def check(graph: Graph) -> None:
    check_signatures(graph, LAYOUT, float_activations)


def test_a_graph_with_right_signatures_passes(graph: Graph) -> None:
    check(graph)


@pytest.mark.parametrize("changes", [{"shape": (1, 999)}, {"shape": (1, "3*T")}, {"dtype": "int64"}])
def test_a_result_that_differs_from_its_signature_is_refused(
    graph: Graph, changes: dict[str, str | tuple[int, int | str]]
) -> None:
    with pytest.raises(ExportError, match=r"component codec: output audio is float32 .*, its signature says"):
        check(with_output(graph, **changes))


def test_a_missing_output_is_refused(graph: Graph) -> None:
    first, *others = graph.components
    signature = replace(first.signature, outputs=())
    with pytest.raises(ExportError, match="component codec: the module returns"):
        check(replace(graph, components=(replace(first, signature=signature), *others)))


def test_one_tensor_as_two_results_is_refused(graph: Graph) -> None:
    """Artifacts have one name for each value."""

    class Repeated(torch.nn.Module):
        def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
            audio, state, *states = graph.module(*arguments)
            return audio, state, state, *states[1:]

    with pytest.raises(ExportError, match="component codec_step: the module returns one tensor twice"):
        check(replace(graph, module=Repeated(), components=graph.components[1:]))


def test_a_graph_whose_weights_are_not_loaded_is_refused(checkpoint: Path) -> None:
    resolved = resolve(Source(checkpoint), ExportRequest(quant="none", options={}, cache_length=64))
    graph = changed(resolved.graphs["codec"], weights=("audio_tokenizer.quantizer",))
    resolved.graphs["codec"] = graph
    with pytest.raises(ExportError, match=r"graph codec: its module uses .*which was not loaded"):
        Model(resolved, LAYOUT).graph("codec")
