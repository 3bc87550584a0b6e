"""`config.pbtxt`: parsed with Triton's protobuf, for graphs of every kind."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from google.protobuf import text_format
from support.runtime.triton import MODEL_CONFIG, data_type

from bundle.errors import UsageError
from bundle.manifest import ComponentEntry
from bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from runtime.triton.config import Serving, graph_config

ROWS = TensorSpec("rows", "float32", (1, "S", 8), Kind.HIDDEN)
ROW = TensorSpec("rows", "float32", (1, 1, 8), Kind.HIDDEN)
POSITION = TensorSpec("position", "int64", (1,), Kind.INDEX)
SOUND = TensorSpec("sound", "float32", (1, "1920*S"), Kind.AUDIO)
LOGITS = TensorSpec("logits", "float32", (1, 20), Kind.LOGITS)
CACHE = StateSpec("cache", "float32", (1, 2, 16, 4), CacheSpec("BHSD, staged"))
TAIL = StateSpec("tail", "float32", (1, 3))
WINDOW = StateSpec("ring", "float32", (1, 2, 16, 4), CacheSpec("BHSD, staged", window=16))
MANY = {"S": (1, 16)}


def entry(name: str, signature: Signature, max_batch: int = 1) -> ComponentEntry:
    return ComponentEntry(
        name=name,
        graph="graph",
        purpose="",
        signature=signature,
        file="graph.onnx",
        entry_point="graph",
        max_batch=max_batch,
        recipe="none",
        bits_per_weight=32,
    )


BACKBONE = (
    entry("prefill", Signature((ROWS, POSITION), (LOGITS,), (CACHE, TAIL), MANY)),
    entry("decode_step", Signature((ROW, POSITION), (LOGITS,), (CACHE, TAIL)), 4),
)


def parsed(entries: Sequence[ComponentEntry], precision: Any = "float32", **serving: int) -> Any:
    text = graph_config("graph", entries, precision, Serving(**serving))
    return text_format.Parse(text, MODEL_CONFIG.ModelConfig())


def sizes(tensors: Iterable[Any]) -> dict[str, tuple[list[int], list[int] | None]]:
    """Sizes that a client sends by name, and those of the graph where they differ."""
    return {
        each.name: (list(each.dims), list(each.reshape.shape) if each.HasField("reshape") else None)
        for each in tensors
    }


def test_a_graph_with_a_batch_axis_is_batched_dynamically() -> None:
    config = parsed([entry("step", Signature((ROW, POSITION), (LOGITS,)), 4)])
    assert config.max_batch_size == 4 and config.HasField("dynamic_batching")
    assert sizes(config.input) == {"rows": ([1, 8], None), "position": ([1], [])}
    assert sizes(config.output) == {"logits": ([20], None)}
    assert not config.HasField("sequence_batching") and config.backend == "onnxruntime"


def test_a_graph_without_a_batch_axis_has_all_sizes() -> None:
    config = parsed([entry("codec", Signature((ROWS, POSITION), (SOUND,), (), MANY))])
    assert config.max_batch_size == 0 and not config.HasField("dynamic_batching")
    assert sizes(config.input) == {"rows": ([1, -1, 8], None), "position": ([1], None)}
    assert sizes(config.output) == {"sound": ([1, -1], None)}


@pytest.mark.parametrize("precision, name", [("float32", "TYPE_FP32"), ("float16", "TYPE_FP16")])
def test_states_begin_as_zeros_and_have_the_precision_of_the_bundle(precision: str, name: str) -> None:
    config = parsed(BACKBONE, precision, sequences=7)
    batching = config.sequence_batching
    assert batching.oldest.max_candidate_sequences == 7 and batching.max_sequence_idle_microseconds > 10**7
    found = {each.input_name: (each.output_name, list(each.dims)) for each in batching.state}
    assert found == {
        "past.cache": ("present.cache", [2, 16, 4]),
        "past.tail": ("present.tail", [3]),
    }
    for state in batching.state:
        (initial,) = state.initial_state
        assert MODEL_CONFIG.DataType.Name(state.data_type) == name and initial.data_type == state.data_type
        assert initial.zero_data and list(initial.dims) == list(state.dims) and initial.name
    assert {data_type(each) for each in config.input} == {"float32", "int64"}  # not those of the states


def test_states_of_a_graph_without_a_batch_axis_have_all_sizes() -> None:
    config = parsed([entry("codec", Signature((ROWS, POSITION), (SOUND,), (TAIL,), MANY))])
    assert config.max_batch_size == 0 and list(config.sequence_batching.state[0].dims) == [1, 3]


def test_one_sequence_per_call_takes_whole_prompts() -> None:
    config = parsed(BACKBONE)
    assert config.max_batch_size == 1 and sizes(config.input)["rows"] == ([-1, 8], None)


def test_several_sequences_per_call_take_a_row_each() -> None:
    config = parsed(BACKBONE, batch=3)
    assert config.max_batch_size == 3 and sizes(config.input)["rows"] == ([1, 8], None)


def test_a_batch_that_no_call_serves_is_refused() -> None:
    with pytest.raises(UsageError, match="batch 5: one call of graph serves at most 4"):
        parsed(BACKBONE, batch=5)


def test_a_sliding_window_cache_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="graph: ring is a sliding-window cache, whose rows are moved"):
        parsed([entry("decoder", Signature((ROWS, POSITION), (LOGITS,), (TAIL, WINDOW), MANY))])


def test_the_processor_and_its_threads() -> None:
    config = parsed(BACKBONE, threads=3)
    (group,) = config.instance_group
    assert group.kind == group.KIND_CPU and group.count == 1
    assert config.parameters["intra_op_thread_count"].string_value == "3"
    assert parsed(BACKBONE, "float16").instance_group[0].kind == group.KIND_AUTO
