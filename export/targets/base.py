"""`Target`: everything that differs between targets. Its facts need no torch and no packages of a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import Bundle, Precision
from voxport.bundle.spec import Dtype, LayoutName, Signature, graph_state_name
from voxport.model.graph import Component
from voxport.quantize.schemes import Scheme

if TYPE_CHECKING:
    from torch import nn

    from voxport.quantize.modules import LinearKernel
    from voxport.runtime.engines.base import Engine, EngineOptions


RING_NOTES = """\
A cache with a window is a sliding-window cache. It is a ring, which the graph maintains.
"""


@dataclass(frozen=True)
class Graph:
    """A module with its weights, and the components that it computes. The first has the widest bounds.

    `exceeds_float16`: values inside may be larger than half precision holds. `title` of the model and
    `licence` of its weights are for people.
    """

    name: str
    module: nn.Module
    components: tuple[Component, ...]
    exceeds_float16: bool = False
    title: str = ""
    licence: str = ""

    @property
    def first(self) -> Component:
        return self.components[0]


@dataclass(frozen=True)
class EntryPoint:
    """The place of a component in the artifacts: callable `name` of `file`.

    `state_rows_per_call` is the largest number of cache rows that one call of a method for reading or writing
    states moves. 0 means that there are no such methods.
    """

    file: str
    name: str
    state_rows_per_call: int = 0


@dataclass(frozen=True)
class Costs:
    """Costs of the tools of a target, for estimates.

    lowering, running: bytes of memory for each byte of an artifact, beside the loaded weights.
    product: seconds to lower one matrix product.
    verification: seconds of verification in one mode, for any model.
    sample: seconds of verification in one mode for each 1e9 weights of a large model.
    """

    lowering: float
    running: float
    product: float
    verification: float
    sample: float


class Target(ABC):
    """One target. A subclass is a light class in `NAME/target.py`, with a row in `export.targets.TARGETS`.

    `lower`, `check` and `linear_kernel` import the packages that they need when they are called.

    name: name in the table and in manifests.
    kernel: module and function of the arithmetic of quantised linears in the artifacts, in plain torch.
    packages: packages that `lower` needs. Their versions go into the manifest, with the versions of torch
        and torchao.
    extra: the extra of voxport that has them.
    layout: memory layout of the KV caches.
    costs: for estimates.
    state_notes: how a runner binds states and which operators it needs, for the README of a bundle.
    sliding_window_notes: how it updates sliding-window caches.
    runners: programs that may run the artifacts, the one of this machine first.
    compute_precisions: precisions that floats can be stored and computed in, the default first.
    verification_precisions: precisions that verification runs the artifact in, the one with the tightest bars
        first. The first one gets the long run. None leaves the choice to the runner.
    default_recipe: recipe of an export that names none.
    recipe_notes: which recipes the units of a device run, for people; empty if all run everywhere.
    native_schemes: types of schemes that the target supports with a kernel or a storage format of its own.
    has_integer_kernels: whether products of integer weights round their activations, whatever the scheme
        asks.
    has_float_activations: whether the runner can leave activations of such products unrounded.
    max_batch: largest batch in one call of a batched component.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    extra: ClassVar[str] = "export"
    layout: ClassVar[LayoutName]
    kernel: tuple[str, str]
    costs: ClassVar[Costs]
    state_notes: ClassVar[str]
    sliding_window_notes: ClassVar[str] = ""
    runners: tuple[str, ...]
    compute_precisions: ClassVar[tuple[Precision, ...]] = ("float32",)
    verification_precisions: tuple[str | None, ...] = (None,)
    default_recipe: ClassVar[str] = "none"
    recipe_notes: ClassVar[str] = ""
    native_schemes: ClassVar[frozenset[str]] = frozenset({"integer"})
    has_integer_kernels: bool = False
    has_float_activations: bool = False
    max_batch: ClassVar[int] = 1

    def __init__(self, compute_precision: Precision | None = None):
        """`compute_precision` is one of `compute_precisions`. None means the default."""
        self.compute_precision: Precision = compute_precision or self.compute_precisions[0]

    @property
    def linear_kernel(self) -> LinearKernel:
        """The function that `kernel` names, for the eager reference."""
        module, function = self.kernel
        kernel: LinearKernel = getattr(import_module(module), function)
        return kernel

    @property
    def float_bytes(self) -> int:
        """Bytes of one floating-point weight in an artifact."""
        return 2 if self.compute_precision == "float16" else 4

    def runs_in_float16(self, precision: str | None, exceeds_float16: bool = False) -> bool:
        """Whether the artifact of a graph rounds values to float16 when it runs in `precision`."""
        return False

    def holds(self, scheme: Scheme) -> bool:
        """Whether the target can store weights in `scheme`."""
        return scheme.type in self.native_schemes or not scheme.needs_native_support

    def check_installed(self) -> None:
        """Raises ExportError that names the packages of the target that are not installed."""
        missing = [package for package in self.packages if find_spec(package) is None]
        if missing:
            raise ExportError(
                f"target {self.name}: {', '.join(missing)} not installed; run pip install "
                f"'voxport[{self.extra}]'"
            )

    def signature(self, component: Component) -> Signature:
        """The signature of a component in the artifact, whose dimensions may have narrower bounds."""
        return component.signature

    @abstractmethod
    def entry_point(self, component: Component) -> EntryPoint:
        """The place of a component in the artifacts."""

    @abstractmethod
    def lower(self, graph: Graph, folder: Path) -> None:
        """Writes the artifact of one graph into `folder`. Raises ExportError.

        Depends on no other graph, so that weights are freed before the next graph is loaded.
        """

    def check(self, graph: Graph, folder: Path) -> str:
        """Reads the artifact of a graph back and compares it with the graph, without running it. Raises
        ExportError.

        Returns a description of what was compared. Empty means that the target compares nothing.
        """
        return ""

    def check_files(self, bundle: Bundle) -> None:  # noqa: B027  most targets read any bytes
        """Raises IntegrityError if reading the artifacts would end this process."""

    def sums_in_float16(self, precision: str | None) -> bool:
        """Whether products are also summed in float16, term by term, when the artifact runs in `precision`.
        Then its bar is wider, and only single calls are compared.
        """
        return False

    def is_slow(self, precision: str | None) -> bool:
        """Whether a large artifact that runs in `precision` takes seconds for each call on this machine."""
        return False

    def open_artifacts(
        self, bundle: Bundle, options: EngineOptions, float_activations: bool = False
    ) -> Engine:
        """The engine that verification runs in the precision of `options`, one of `verification_precisions`.

        `float_activations`: without rounding activations. Only for targets with `has_float_activations`.
        """
        from voxport.runtime.engines import open_engine

        return open_engine(bundle, options)

    def readme_notes(self, has_sliding_window: bool) -> str:
        """Paragraphs for the README of a bundle."""
        return f"{self.state_notes}\n{self.sliding_window_notes}" if has_sliding_window else self.state_notes

    def engine_notes(self, folder: Path) -> str:
        """A paragraph for the README of the bundle in `folder`: which engines run it."""
        return ""

    def artifact_dtype(self, dtype: Dtype) -> Dtype:
        """Dtype in the artifact of an input or output that the component declares as `dtype`."""
        return dtype

    def state_name(self, graph: str, state: str) -> str:
        """Name in the artifact of a state."""
        return state

    def state_dtype(self, dtype: Dtype, exceeds_float16: bool = False) -> Dtype:
        """Dtype in the artifact of a graph's state that the component declares as `dtype`."""
        return dtype


class PackageTarget(Target):
    """A target of Apple: one package for each graph, with a function for each component. Functions share
    weights and states.

    Its folder has `lowering.lower_graph` and `read_back.check_package`.

    suffix: how names of packages end.
    """

    suffix: ClassVar[str]
    layout = "BHSD"
    kernel = ("voxport.export.targets.apple", "dequantized_linear")
    sliding_window_notes = RING_NOTES
    compute_precisions = ("float16", "float32")
    native_schemes = frozenset({"integer", "palette"})

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(component.graph + self.suffix, component.name)

    def lower(self, graph: Graph, folder: Path) -> None:
        path = folder / f"{graph.name}{self.suffix}"
        self._module("lowering").lower_graph(graph, path, self._precision(graph))

    def check(self, graph: Graph, folder: Path) -> str:
        path = folder / f"{graph.name}{self.suffix}"
        self._module("read_back").check_package(path, graph, self._precision(graph))
        return "functions, states, integers and scales equal the module"

    def _precision(self, graph: Graph) -> Precision:
        return "float32" if graph.exceeds_float16 else self.compute_precision

    def _module(self, name: str) -> Any:
        return import_module(f"voxport.export.targets.{self.name}.{name}")

    def artifact_dtype(self, dtype: Dtype) -> Dtype:
        """There are no 64-bit integers."""
        return "int32" if dtype == "int64" else dtype

    def state_name(self, graph: str, state: str) -> str:
        return graph_state_name(graph, state)
