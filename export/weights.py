"""Sizes of weights, from shapes alone."""

from dataclasses import dataclass

from torch import nn

from model.checkpoint import is_below
from model.family import Family
from quantize.recipe import Recipe
from quantize.schemes import Storage


@dataclass
class GraphWeights:
    """Weights of one graph.

    `stored` is the size in the recipe's types. `read` is what one call reads from memory; the few rows of a
    table count as none. `loaded` and `packed` are the size in memory before and after packing. All but
    `count` are in bytes.
    """

    count: int = 0
    stored: float = 0.0
    read: float = 0.0
    loaded: float = 0.0
    packed: float = 0.0


def graph_weights(
    root: nn.Module, family: Family, graph: str, recipe: Recipe, float_bytes: int
) -> GraphWeights:
    """Sizes of the weights of `graph` under `recipe`; `float_bytes` is the size of an unquantised value."""
    prefixes = family.weights_of_graph[graph]
    modules = {
        path: part for path, part in root.named_modules() if isinstance(part, nn.Linear | nn.Embedding)
    }
    tables = {f"{path}.weight": isinstance(part, nn.Embedding) for path, part in modules.items()}
    found = GraphWeights()
    for name, parameter in root.named_parameters(remove_duplicate=False):  # a tied weight is in both graphs
        path, count = name.removesuffix(".weight"), int(parameter.numel())
        if not is_below(name, prefixes) or family.is_constant(path):
            continue
        scheme = recipe.scheme_for(path, tables[name]) if name in tables else None
        if scheme is None:
            storage = Storage(float(float_bytes * count), float(4 * count), float(4 * count))
        else:
            storage = scheme.storage(parameter.shape)
        found.count += count
        found.stored += storage.artifact
        found.read += 0 if tables.get(name) else storage.artifact
        found.loaded += storage.loaded
        found.packed += storage.packed
    return found
