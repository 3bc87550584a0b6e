"""What a manifest says: components, recipe, sources, tools, licence."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bundle.bundle import ComponentEntry, FileEntry, RecipeEntry, State, Tensor, file_entry
from export.source import Plan, Source
from export.targets.base import EntryPoint
from model.checkpoint import WEIGHTS
from model.component import Component
from bundle.spec import TensorSpec

TOKENIZER = "tekken.json"
NOT_RUN = "not run"  # a manifest's numerics where nothing has executed the artifacts


def component_entry(
    component: Component, where: EntryPoint, recipe: str, report: dict[str, Any], most_streams: int = 1
) -> ComponentEntry:
    """The component as a manifest tells of it; `most_streams` is the target's."""

    def tensors(specs: tuple[TensorSpec, ...]) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(name=spec.name, dtype=spec.dtype, shape=spec.shape, kind=spec.kind.value) for spec in specs
        )

    return ComponentEntry(
        name=component.name,
        graph=component.graph,
        file=where.file,
        entry_point=where.name,
        purpose=component.purpose,
        inputs=tensors(component.signature.inputs),
        outputs=tensors(component.signature.outputs),
        states=tuple(State(**asdict(s)) for s in component.signature.states),
        dims=dict(component.signature.dims if where.dims is None else where.dims),
        most_streams=most_streams if component.batched else 1,
        rows_moved=where.rows_moved,
        recipe=recipe,
        **report,
    )


def recipe_entry(source: Source, plan: Plan) -> RecipeEntry:
    """What decides the weights of each graph."""
    return RecipeEntry.model_validate(
        {
            "name": plan.quant,
            "graphs": {graph: recipe.describe() for graph, recipe in source.recipes(plan).items()},
        }
    )


def source_files(checkpoint: Path) -> dict[str, FileEntry]:
    """Hash and size of every file that a bundle is made from."""
    names = ["params.json", WEIGHTS, TOKENIZER]
    names += sorted(f"voice_embedding/{path.name}" for path in (checkpoint / "voice_embedding").glob("*.pt"))
    return {name: file_entry(checkpoint / name) for name in names if (checkpoint / name).is_file()}


def tool_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions that decide the bytes of an artifact, our own code's by its content."""
    versions = {package: version(package) for package in sorted({*packages, "torch", "torchao"})}
    return versions | {"voxport": _code_hash()}


@cache
def _code_hash() -> str:
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for package in ("bundle", "export", "model", "quantize", "runtime"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
