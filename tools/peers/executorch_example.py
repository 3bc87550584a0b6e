"""The llama example in ExecuTorch's package, with random weights in the shapes of Voxtral-TTS.

Linears have 4 bits in groups of 32 and dynamic 8-bit activations (`8da4w`), attention is the custom operator,
and XNNPACK takes all that it can, as in the published export of the example. The example for Voxtral-TTS is
built in the same way. It calls the acoustic head twice per Euler step, with three rows each, so `step` is two
calls.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from executorch.examples.models.llama.source_transformation.custom_kv_cache import (
    replace_kv_cache_with_custom_kv_cache,
)
from executorch.examples.models.llama.source_transformation.sdpa import replace_sdpa_with_custom_op
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers the operators
from executorch.extension.llm.export.partitioner_lib import get_xnnpack_partitioner
from executorch.extension.pybindings import portable_lib
from executorch.runtime import Runtime
from torch import nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup

DIM, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 3072, 9216, 32, 8, 128, 8320
CONTEXT, PAST, HEAD_LAYERS, HEAD_ROWS = 512, 250, 3, 3


class Backbone(nn.Module):
    """h [1, 1, dim], position int64 [1] -> logits of the semantic head."""

    def __init__(self, transformer: nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, h: torch.Tensor, position: torch.Tensor) -> Any:
        return self.transformer(h=h, attn_options={"input_pos": position})


class Head(nn.Module):
    """h [1, 3, dim] -> [1, 3, dim], without a cache."""

    def __init__(self, transformer: nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, h: torch.Tensor) -> Any:
        return self.transformer(h=h)


def _export(path: Path, layers: int, with_cache: bool) -> None:
    arguments = ModelArgs(
        dim=DIM,
        hidden_dim=HIDDEN,
        n_layers=layers,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY,
        max_seq_len=CONTEXT,
        max_context_len=CONTEXT,
        use_kv_cache=with_cache,
        use_sdpa_with_kv_cache_op=with_cache,
        apply_embedding=False,
        apply_output=with_cache,
        generate_full_logits=not with_cache,
    )
    torch.manual_seed(0)
    model: Any = construct_transformer(arguments).eval()
    if with_cache:
        model = replace_sdpa_with_custom_op(replace_kv_cache_with_custom_kv_cache(model))
    four_bits = torch.int4  # type: ignore[attr-defined]  # torch defines it when it is imported
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=four_bits, weight_granularity=PerGroup(32))
    quantize_(model, config)
    inputs = (torch.randn(1, 1 if with_cache else HEAD_ROWS, DIM),)
    if with_cache:
        traced = torch.export.export(Backbone(model), (*inputs, torch.tensor([0])), strict=False)
    else:
        traced = torch.export.export(Head(model), inputs, strict=False)
    partitioners = [get_xnnpack_partitioner(dynamic_quant_only_partitioner=only) for only in (True, False)]
    edge = to_edge_transform_and_lower(
        traced, partitioner=partitioners, compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    planning = MemoryPlanningPass(alloc_graph_input=False)
    with path.open("wb") as file:
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).write_to_file(file)


def calls(folder: Path, layers: int, threads: int) -> dict[str, Callable[[], None]]:
    """`backbone`: one row at position `PAST`, `layers` layers and the semantic head. `step`: three layers."""
    portable_lib._unsafe_reset_threadpool(threads)
    found: dict[str, Callable[[], None]] = {}
    shapes = {"backbone": (layers, True, 1, 1), "step": (HEAD_LAYERS, False, HEAD_ROWS, 2)}
    for name, (count, with_cache, rows, times) in shapes.items():
        path = folder / f"executorch-{name}-{count}.pte"
        if not path.exists():
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                logging.disable(logging.WARNING)
                _export(path, count, with_cache)
        method = Runtime.get().load_program(path).load_method("forward")
        inputs = [torch.randn(1, rows, DIM), *([torch.tensor([PAST])] if with_cache else [])]
        found[name] = partial(_execute, method, inputs, times)
    return found


def _execute(method: Any, inputs: list[torch.Tensor], times: int) -> None:  # Any: a method of ExecuTorch
    for _ in range(times):
        method.execute(inputs)


def describe() -> dict[str, str]:
    return {name: version(name) for name in ("executorch", "torch", "torchao")}
