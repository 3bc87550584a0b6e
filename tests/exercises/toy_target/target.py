"""The export half: one `.npz` of weights per graph. It holds the decoder of the toy family only."""

from pathlib import Path

from voxport.export.targets.base import Costs, EntryPoint, Graph, Target
from voxport.model.graph import Component


class NumpyTarget(Target):
    """Float weights are `PATH.weight`; 8-bit weights are `PATH.weight` int8 and `PATH.scale`, one per row."""

    name = "numpy"
    packages = ("numpy",)
    layout = "BSHD"
    kernel = ("voxport.quantize.modules", "float_activations")
    costs = Costs(lowering=1, running=1, product=0.01, verification=1, sample=1)
    state_notes = "The caller keeps the states."
    runners = ("NumPy",)

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(f"{component.graph}.npz", component.graph)

    def lower(self, graph: Graph, folder: Path) -> None:
        import numpy as np
        from exercises.toy_model.graphs import Decoder

        from voxport.bundle.errors import ExportError

        if not isinstance(graph.module, Decoder):
            raise ExportError(f"{graph.name}: numpy holds the decoder of the toy family only")
        np.savez(
            folder / f"{graph.name}.npz",
            **{name: tensor.numpy() for name, tensor in graph.module.state_dict().items()},
        )
