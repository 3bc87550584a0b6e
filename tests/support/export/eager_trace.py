"""The trace of a checkpoint in eager PyTorch, without a bundle."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.runtime.engines.base import Arrays
from voxport.runtime.families import open_family
from voxport.runtime.trace import read_inputs


def trace_eager(
    checkpoint: Path, inputs: Path, options: Mapping[str, JsonValue], live: bool = False
) -> Arrays:
    resolved = resolve(Source(checkpoint), ExportRequest(options={**options}))
    model, source, constants = Model(resolved, "BSHD"), resolved.source, resolved.runtime_constants
    engine = EagerEngine(model.components, model.module, "BSHD")
    trace, files = (
        open_family(source.family.name).trace,
        [source.folder / name for name in source.tokenizer_files],
    )
    return trace.run(engine, constants, read_inputs(inputs, trace.inputs(constants)), live, files)
