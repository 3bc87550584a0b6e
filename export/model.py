"""The modules of a checkpoint with a job's quantisation, loaded graph by graph."""

from collections.abc import Iterator

from torch import nn

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import Precision, WeightError
from voxport.bundle.spec import LayoutName
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Graph
from voxport.model.checkpoint import materialize
from voxport.model.layers.channels import ChannelChanges
from voxport.quantize.modules import pack_modules
from voxport.quantize.parallel import one_thread
from voxport.quantize.quantizer import Quantizer


class Model:
    """Graphs of a checkpoint, quantised. Weights load when a graph is asked for."""

    def __init__(self, resolved: Resolved, layout: LayoutName, precision: Precision = "float32"):
        """`layout` is the caches' layout. Unquantised weights are rounded to the target's `precision`."""
        self.resolved, self._precision = resolved, precision
        self.components = resolved.components(layout)
        self._loaded: dict[str, Graph] = {}
        self.weight_errors: dict[str, WeightError] = {}
        self.layer_errors: dict[str, dict[str, float]] = {}  # |w - q| / |w| by graph and path

    def graph(self, name: str) -> Graph:
        """One graph with its weights."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, graph: str) -> Graph:
        resolved, source = self.resolved, self.resolved.source
        spec, root = resolved.graphs[graph], source.root()
        calibration, checkpoint = resolved.calibration, source.checkpoint
        quantizer = Quantizer(resolved.recipes[graph], source.family.is_folded, calibration)
        if calibration:
            changes = ChannelChanges(source.root(), calibration.exponents, calibration.rotations)
            checkpoint = checkpoint.changed(changes)
        materialize(root, checkpoint, spec.weights, quantizer)
        with one_thread():  # constants are folded; the order of sums depends on the number of threads
            module = spec.build(root, resolved.model())
        _check_loaded(graph, module)
        if self._precision == "float16":
            _round_to_float16(graph, module)
        if report := quantizer.report():
            searched, min_max = report["weight_error"], report["weight_error_min_max"]
            self.weight_errors[graph] = WeightError(searched=searched, min_max=min_max)
        self.layer_errors[graph] = {
            path: (found.searched / max(found.norm, 1e-30)) ** 0.5 for path, found in quantizer.errors.items()
        }
        components = tuple(component for component in self.components if component.graph == graph)
        return Graph(graph, module, components, not spec.float16, source.family.title, source.licence)

    def release(self, graph: str) -> None:
        """Frees the weights of a graph. They are loaded again when asked for."""
        self._loaded.pop(graph, None)

    def pack(self, graph: str) -> None:
        """Packs the weights of a graph that has been lowered: it is only called from now on."""
        if graph in self._loaded:
            pack_modules(self._loaded[graph].module)

    def graphs(self) -> Iterator[Graph]:
        """All graphs, each loaded when its turn comes."""
        return map(self.graph, self.resolved.recipes)

    def module(self, component: str) -> nn.Module:
        """The module of the graph of a component, with its weights."""
        return self.graph(self.resolved.graph_of[component]).module


def _check_loaded(graph: str, module: nn.Module) -> None:
    """Raises ExportError if a tensor of the graph has no values."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise ExportError(
                f"graph {graph}: its module uses {name}, which was not loaded; "
                "add its prefix to `weights` of the GraphSpec"
            )


def _round_to_float16(graph: str, module: nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            rounded = tensor.half()
            if not rounded.isfinite().all():
                raise ExportError(
                    f"{graph}: a weight of {float(tensor.abs().max()):.3g} exceeds half precision; "
                    "compute precision float32 holds it"
                )
            tensor.data = rounded.float()
