"""`config.pbtxt` of a graph: how Triton Inference Server batches it and keeps its states.

Triton counts axis 0 apart where `max_batch_size` is not 0. Then the sizes here leave it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bundle.errors import UsageError
from bundle.manifest import ComponentEntry, Precision
from bundle.spec import ONNX_PAST, ONNX_PRESENT, StateSpec, TensorSpec
from runtime.triton.pbtxt import Field, Name, as_text

BACKEND = "onnxruntime"
TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "int64": "TYPE_INT64", "int32": "TYPE_INT32"}
ANY_SIZE = -1
IDLE_S = 60  # without a request, after which Triton ends a sequence


@dataclass(frozen=True)
class Serving:
    """How the graphs with states are served.

    `batch`: sequences that one call serves. `sequences`: that have states at a time. `threads` of a graph;
    None is all cores.
    """

    batch: int = 1
    sequences: int = 4
    threads: int | None = None


def graph_config(name: str, entries: Sequence[ComponentEntry], precision: Precision, serving: Serving) -> str:
    """The file of the graph `name`, whose components are `entries`.

    Raises UsageError where Triton cannot keep its states, or cannot serve that batch.
    """
    max_batch, states = max(entry.max_batch for entry in entries), entries[0].signature.states
    has_batch_axis = max_batch > 1
    if states and has_batch_axis:
        check_batch(name, serving.batch, max_batch)
        batch = serving.batch
    else:
        batch = max_batch if has_batch_axis else 0
    if states and batch > 1:  # attention reads several rows of one sequence only
        entries = entries[-1:]
    tensors = [
        *(("input", _tensor(specs, batch > 0)) for specs in _by_name(entries, "inputs")),
        *(("output", _tensor(specs, batch > 0)) for specs in _by_name(entries, "outputs")),
    ]
    return as_text(
        (
            ("name", name),
            ("backend", BACKEND),
            ("max_batch_size", batch),
            *tensors,
            *_batching(name, states, precision, batch, serving),
            *_execution(precision, serving),
        )
    )


def check_batch(name: str, batch: int, max_batch: int) -> None:
    """Raises UsageError where one call of a graph cannot serve so many sequences."""
    if batch > max_batch:
        raise UsageError(
            f"batch {batch}: one call of {name} serves at most {max_batch} sequences", field="batch"
        )


def _by_name(entries: Sequence[ComponentEntry], kind: str) -> list[list[TensorSpec]]:
    """The inputs, or the outputs, of a graph, each as all its components declare it."""
    found: dict[str, list[TensorSpec]] = {}
    for entry in entries:
        for spec in getattr(entry.signature, kind):
            found.setdefault(spec.name, []).append(spec)
    return list(found.values())


def _tensor(specs: list[TensorSpec], has_batch: bool) -> tuple[Field, ...]:
    """A size that is named, or differs between components, is any size."""
    shapes = [spec.shape[1:] if has_batch else spec.shape for spec in specs]
    dims = [
        sizes[0] if isinstance(sizes[0], int) and len(set(sizes)) == 1 else ANY_SIZE
        for sizes in zip(*shapes, strict=True)
    ]
    fields: tuple[Field, ...] = (("name", specs[0].name), ("data_type", Name(TYPES[specs[0].dtype])))
    if dims:
        return (*fields, ("dims", dims))
    return (*fields, ("dims", [1]), ("reshape", (("shape", []),)))  # Triton has no tensors without sizes


def _batching(
    name: str, states: Sequence[StateSpec], precision: Precision, batch: int, serving: Serving
) -> tuple[Field, ...]:
    if not states:
        return (("dynamic_batching", ()),) if batch else ()
    kept = tuple(("state", _state(name, state, precision, batch > 0)) for state in states)
    oldest = (("oldest", (("max_candidate_sequences", serving.sequences),)),)
    idle = (("max_sequence_idle_microseconds", IDLE_S * 1_000_000),)
    return (("sequence_batching", (*idle, *oldest, *kept)),)


def _state(name: str, state: StateSpec, precision: Precision, has_batch: bool) -> tuple[Field, ...]:
    """Without an initial state the first request of a sequence would read memory that is not initialised."""
    if state.window:
        raise UsageError(
            f"{name}: {state.name} is a sliding-window cache, whose rows are moved between calls; Triton "
            f"passes states on unchanged, so it cannot serve this graph. Serve the bundle with voxport "
            "serve, or leave the graph out",
            field="graph",
        )
    dims = list(state.shape[1:] if has_batch else state.shape)
    form = (("data_type", Name(TYPES[precision])), ("dims", dims))
    return (
        ("input_name", ONNX_PAST + state.name),
        ("output_name", ONNX_PRESENT + state.name),
        *form,
        ("initial_state", (("name", f"zeros of {state.name}"), *form, ("zero_data", True))),
    )


def _execution(precision: Precision, serving: Serving) -> tuple[Field, ...]:
    """Bundles in float32 run on the processor. For others Triton takes a GPU if there is one."""
    group: tuple[Field, ...] = (("count", 1),)
    if precision == "float32":
        group = (*group, ("kind", Name("KIND_CPU")))
    threads: tuple[Field, ...] = ()
    if serving.threads:
        value = (("string_value", str(serving.threads)),)
        threads = (("parameters", (("key", "intra_op_thread_count"), ("value", value))),)
    return (("instance_group", group), *threads)
