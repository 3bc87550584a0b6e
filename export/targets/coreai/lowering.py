"""Lowering of one graph to a Core AI asset: torch traces its components, coreai-torch converts them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from coreai.authoring import AIProgram
from coreai.runtime import AIModelAssetMetadata
from torch import nn
from torch.export import ExportedProgram

from voxport.bundle.manifest import Precision, file_entry
from voxport.export.memory import free_memory
from voxport.export.targets.apple import FLOAT32_KINDS, split_factor, traced_weights
from voxport.export.targets.base import Graph
from voxport.export.targets.coreai.bytecode import rename
from voxport.export.targets.coreai.half import narrow
from voxport.export.targets.coreai.tools import TorchConverter, check_space, get_decomp_table, saved_functions
from voxport.export.targets.coreai.weights import StoredWeights, stored_weights_of
from voxport.export.targets.shared import export_errors, trace, without_converter_output
from voxport.model.graph import Component
from voxport.quantize.modules import QuantizedLinear

PROGRAM, HASH, METADATA = "main.mlirb", "main.hash", "metadata.json"
aten = torch.ops.aten


def lower_graph(graph: Graph, path: Path, precision: Precision) -> None:
    """Writes the asset `path`. Raises ExportError."""
    for part in graph.module.modules():
        if isinstance(part, QuantizedLinear):
            part.pack()  # from now on, its weights take half of the memory
    with export_errors(f"{graph.name}: Core AI export failed"), without_converter_output():
        program = _converted(graph, precision)
        free_memory()  # saving holds all bytes of the asset once more
        path.parent.mkdir(parents=True, exist_ok=True)
        # indices into palettes, uint8 here, take half a byte in the asset
        halved = (torch.uint8, torch.float32 if precision == "float16" else torch.uint8)
        weights = graph.module.state_dict().values()
        size = sum(each.nbytes // (2 if each.dtype in halved else 1) for each in weights)
        check_space(path.parent, size)
        program.save_asset(path, _metadata(graph))
        normalise(path)


def _converted(graph: Graph, precision: Precision) -> AIProgram:
    converter = TorchConverter(mode=TorchConverter.Mode.RELEASE)  # otherwise paths of this machine
    converter.register_torch_lowering("voxport::stored_weight.default")(StoredWeights(graph.module))
    for component in graph.components:
        program = _program(component, graph.module, precision)
        converter.add_exported_program(
            program,
            entrypoint_name=component.name,
            input_names=[spec.name for spec in component.signature.inputs],
            output_names=[spec.name for spec in component.signature.outputs],
            state_names=list(program.graph_signature.buffers_to_mutate.values()),
        )
        free_memory()
    return converter.to_coreai()


def _metadata(graph: Graph) -> AIModelAssetMetadata:
    """For people, as Xcode shows it. The author of a checkpoint is not known."""
    found = AIModelAssetMetadata()
    calls = "".join(f"\n{component.name}: {component.purpose}" for component in graph.components)
    found.license, found.model_description = graph.licence, f"{graph.title}: {graph.name}{calls}"
    return found


def _program(component: Component, module: nn.Module, precision: Precision) -> ExportedProgram:
    with traced_weights(module, stored_weights_of(module)):
        traced = trace(component, module)
    table = get_decomp_table()
    table.update(DECOMPOSITIONS)
    if precision == "float16":
        table[aten.mul.Tensor] = split_factor
    program: ExportedProgram = traced.run_decompositions(table)
    _remove_unused(program)
    if precision == "float16":
        exact = [i for i, spec in enumerate(component.signature.outputs) if spec.kind in FLOAT32_KINDS]
        narrow(program, exact)
    return program


def _remove_unused(program: ExportedProgram) -> None:
    """Removes the values of states, and what no operator takes, such as the integers that `stored_weight`
    stands for. The converter would copy them.
    """
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    for node, spec in zip(
        program.graph.find_nodes(op="placeholder"), list(signature.input_specs), strict=True
    ):
        if spec.target in changed:
            program.state_dict[spec.target] = torch.empty(0)
        elif spec.target and not node.users:
            program.graph.erase_node(node)
            signature.input_specs.remove(spec)
            program.state_dict.pop(spec.target, None)


def _remainder(x: torch.Tensor, divisor: int) -> torch.Tensor:
    return torch.remainder(x, torch.full((), divisor, dtype=x.dtype))


def _argmin(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return torch.argmax(-x, dim, keepdim)


def _elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


def _add(x: torch.Tensor, y: Any, alpha: float = 1) -> Any:
    """[1, 1] + [S] with a dynamic S: coreai-core 1.0.0b3 gives the sum the shape [1, 1]."""
    if alpha == 1 and isinstance(y, torch.Tensor) and tuple(x.shape) == (1, 1) and y.dim() == 1:
        return aten.unsqueeze.default(aten.add.Tensor(aten.reshape.default(x, [1]), y), 0)
    return NotImplemented


# Overloads that the converter refuses, or that fail in a call.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.remainder.Scalar: _remainder,
    aten.argmin.default: _argmin,
    aten.elu.default: _elu,
    aten.add.Tensor: _add,
}


def normalise(path: Path) -> None:
    """Removes what differs from process to process: names that are random or hashes, and the date."""
    with saved_functions(path) as functions:
        private = [name for name, function in functions.items() if "priv" in function.attributes]
    rename(path / PROGRAM, private)
    (path / HASH).write_bytes(bytes.fromhex(file_entry(path / PROGRAM).sha256))
    metadata = json.loads((path / METADATA).read_text())
    metadata.pop("creationDate", None)
    (path / METADATA).write_text(json.dumps(metadata, indent=2, sort_keys=True) + "\n")
