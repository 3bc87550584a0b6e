"""`Family`: what export, conversion and people need of a model family."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, Self

import numpy as np
import torch
from torch import nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from voxport.bundle.errors import CheckpointError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import NO_LICENCE_NEEDED, FamilyConstants
from voxport.model.adapter import Adapter
from voxport.model.checkpoint import Checkpoint, Shapes, expected_tensors
from voxport.model.checkpoint_layout import CheckpointLayout, TransformersLayout, WeightFile
from voxport.model.config import Config
from voxport.model.download import card_languages, card_licence
from voxport.model.graph import Component, GraphSpec, ModelSpec, Options, Weights
from voxport.model.mlx.layout import MLX_WEIGHTS, MlxLayout
from voxport.model.mlx.tensor_layouts import stored_tensors, tagged_layout

Distribution = tuple[np.float32, np.float32]  # mean and standard deviation
INITIALISERS = (init.kaiming_uniform_, init.uniform_, init.normal_)


class _WithoutInitialValues(TorchFunctionMode):
    """Leaves out the random values of new modules: on the meta device they take time and set nothing."""

    # Any: the arguments of any function of torch
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function in INITIALISERS:
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **named)


@dataclass(frozen=True)
class Decoder:
    """Two components with the same caches: `prefill` fills them, and `step` continues at the next position.

    `output` names the output of `step` that long runs compare.
    """

    prefill: str
    step: str
    output: str


@dataclass(frozen=True)
class ChunkedComponent:
    """A component that takes `whole` inputs, and one that takes them in chunks with carried state.

    A bundle without the component `chunk` passes the chunks to `whole`.
    """

    whole: str
    chunk: str


@dataclass(frozen=True)
class Approximation:
    """An option that trades accuracy for speed. It changes the modules of one graph only.

    Verification reports how far the codes of a teacher-forced run are from the codes of the option's default.
    """

    option: str
    graph: str


@dataclass(frozen=True)
class VerificationPlan:
    """Sequences of calls to verify, and options whose effect is reported.

    A family without decoders or chunked components skips their checks.
    """

    decoders: tuple[Decoder, ...] = ()
    chunked: tuple[ChunkedComponent, ...] = ()
    approximations: tuple[Approximation, ...] = ()

    def restricted_to(self, components: Collection[str]) -> "VerificationPlan":
        """The plan for an export that has only these components."""
        return replace(
            self,
            decoders=tuple(each for each in self.decoders if {each.prefill, each.step} <= set(components)),
            chunked=tuple(each for each in self.chunked if each.whole in components),
        )


@dataclass(frozen=True)
class Release:
    """A published checkpoint of a family, in the terms of model hubs.

    name: `owner/name` on the hub.
    licence: the hub's id of the licence of weights and voices.
    size: the synthetic size that has the published shapes.
    """

    name: str
    licence: str
    size: str = "full"


class Tensors(Protocol):
    """What identifies a release: whether the weights are random, and which tensors there are."""

    is_random: bool

    def has(self, expected: Shapes) -> bool: ...


class Synthetic(ABC, Generic[Config]):
    """Checkpoints of random weights in the published layout.

    version: of the tiny checkpoint of seed 0; raise it when its bytes change.
    sizes: names of the available sizes.
    weight_files: prefix of the tensor names in each weight file; the longest prefix decides, and is not
        stored. `float32_files` are in float32; the others are in bfloat16. All have `metadata`.
    """

    version: int
    sizes: tuple[str, ...]
    weight_files: Mapping[str, str]
    float32_files: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}

    @abstractmethod
    def documents(self, size: str) -> dict[str, Json]:
        """Contents of all JSON files, by path."""

    @abstractmethod
    def distribution(self, name: str, shape: tuple[int, ...], config: Config) -> Distribution:
        """The dtype of a tensor's values."""

    def adjust(self, name: str, first: int, rows: np.ndarray, seed: int, config: Config) -> None:
        """Changes a block of a tensor's rows in place, float32 [rows, width]; `first` is the index of the
        first row.
        """

    def flags(self, shapes: Shapes) -> Shapes:
        """Shapes of tensors that the published files have and the holders lack."""
        return {}

    def write_extra_files(self, folder: Path, size: str, seed: int) -> None:
        """Writes all files that are neither JSON nor weights."""


class Family(ABC, Generic[Weights, Config, Options]):
    """A model family. `Weights` is the class of the holder of a checkpoint's tensors.

    Without parameters, `Family` is any family: callers pass its values back to it only.

    licence: licence of the published weights, for people.
    task: the hub's name of what the model does, as in `text-to-speech`.
    languages: codes of ISO 639-1.
    layouts: the layouts of checkpoints, the published one first. `layout` is the one that is read.
    unused: prefixes of tensor names that a checkpoint may have and no graph needs, with what would use them.
    folded: patterns of module paths that are folded into constants at export.
    parameter_groups: title of the parameters whose names begin with a prefix.
    verification: the components that verification calls in sequence.
    call_facts: numbers that `calls.md.j2` has besides constants and options.
    """

    name: str
    title: str
    licence: str
    task: str
    languages: tuple[str, ...]
    options: type[Options]
    layouts: tuple[CheckpointLayout[Config], ...]
    verification: VerificationPlan
    parameter_groups: Mapping[str, str]
    releases: tuple[Release, ...] = ()
    unused: Mapping[str, str] = {}
    folded: tuple[str, ...] = ()
    call_facts: Mapping[str, object] = {}

    def __init__(self) -> None:
        self.layout = self.layouts[0]

    @property
    def mlx(self) -> MlxLayout[Config]:
        """The layout of mlx-audio. Only conversions read it."""
        found = (layout for layout in self.layouts if isinstance(layout, MlxLayout))
        return next(found, MlxLayout(self.layouts[0]))

    @property
    def transformers(self) -> TransformersLayout[Config] | None:
        """The layout of transformers, if it is not the published one."""
        return next((layout for layout in self.layouts if isinstance(layout, TransformersLayout)), None)

    @property
    def synthetic(self) -> Synthetic[Config]:
        """`SYNTHETIC` of the module `synthetic` beside the family, which is imported when it is needed."""
        package = type(self).__module__.rpartition(".")[0]
        found: Synthetic[Config] = import_module(f"{package}.synthetic").SYNTHETIC
        return found

    def parse_config(self, content: Any, source: str) -> Config:  # Any: parsed JSON, not yet checked
        """The configuration. `source` names the file. Raises ConfigError that names the key."""
        return self.layouts[0].parse_config(content, source)

    @abstractmethod
    def size_config(self, size: str) -> Json:
        """The configuration of a synthetic size, as `parse_config` takes it."""

    def config_of_size(self, size: str) -> Config:
        return self.parse_config(self.size_config(size), f"size {size}")

    @abstractmethod
    def weights(self, config: Config) -> Weights:
        """The holder of all tensors; its parameters have the published tensor names."""

    @abstractmethod
    def graphs(self, config: Config, options: Options) -> tuple[GraphSpec[Weights, Config, Options], ...]:
        """The graphs of a model, in the order in which a runner first calls them."""

    @abstractmethod
    def constants(self, config: Config, options: Options) -> FamilyConstants:
        """What a runner needs besides names and shapes."""

    @abstractmethod
    def longest_cache(self, config: Config) -> int:
        """Most rows of a cache; at least 64, also without a cache."""

    @abstractmethod
    def default_cache(self, config: Config, options: Options) -> int:
        """Rows of a cache by default; at least 64."""

    @abstractmethod
    def summary(self, config: Config) -> list[tuple[str, str]]:
        """Rows of a configuration, for `inspect`."""

    def calls(self, config: Config, options: Options) -> str:
        """Markdown: the order of calls, for authors of runners. From `calls.md.j2` beside the family."""
        import jinja2  # imported when a card is written

        template = Path(inspect.getfile(type(self))).with_name("calls.md.j2").read_text(encoding="utf-8")
        constants = self.constants(config, options)
        text: str = jinja2.Template(template, undefined=jinja2.StrictUndefined).render(
            c=constants, options=options, **self.call_facts
        )
        return text

    def option_defaults(self, config: Config) -> Json:
        """Defaults that depend on the configuration, by option."""
        return {}

    def variant(self, config: Config) -> str:
        """Distinguishes releases of equal shapes."""
        return ""

    def config_languages(self, config: Config, voices: Collection[str]) -> set[str]:
        """Codes of the languages that a configuration and names of voices say."""
        return set()

    def all_weights(self, config: Config) -> nn.Module:
        """The holder with the unused tensors of known shapes, which conversions need for their layouts."""
        return self.weights(config)

    def reading(self, layout: CheckpointLayout[Config]) -> Self:
        """The family for a checkpoint in `layout`."""
        other = copy.copy(self)
        other.layout = layout
        return other

    def components(self, model: ModelSpec[Config, Options]) -> tuple[Component, ...]:
        """The components of all graphs, without touching a module."""
        graphs = self.graphs(model.config, model.options)
        return tuple(component for graph in graphs for component in graph.components(model))

    def build_root(self, config: Config) -> Weights:
        """The holder of all tensors on the meta device: shapes without storage."""
        with torch.device("meta"), _WithoutInitialValues():
            return self.weights(config).requires_grad_(False)

    def build_all(self, config: Config) -> nn.Module:
        """As `build_root`, with the unused tensors of known shapes."""
        with torch.device("meta"), _WithoutInitialValues():
            return self.all_weights(config).requires_grad_(False)

    def open_root(self, config: Config, checkpoint: Checkpoint) -> Weights:
        """The holder for a checkpoint, with every tensor checked and none loaded. Raises CheckpointError."""
        root = self.build_root(config)
        checkpoint.check(expected_tensors(root), tuple(self.unused))
        for name, stored in stored_tensors(root).items():
            if stored.is_ambiguous and tagged_layout(checkpoint, name, self.mlx) == "mlx":
                raise CheckpointError(f"{checkpoint.path(name)}: tensor {name}: {MLX_WEIGHTS}")
        return root

    def unused_tensors(self, checkpoint: Checkpoint, config: Config) -> dict[str, tuple[str, ...]]:
        """Names of the tensors in `checkpoint` that no graph needs, by what would use them."""
        expected = expected_tensors(self.build_root(config))
        found: dict[str, tuple[str, ...]] = {}
        for prefix, use in self.unused.items():
            if names := tuple(name for name in checkpoint.below(prefix) if name not in expected):
                found[use] = (*found.get(use, ()), *names)
        return found

    def open_checkpoint(self, folder: Path) -> Checkpoint:
        """The tensors of a checkpoint, with its adapter. Raises IntegrityError."""
        checkpoint = Checkpoint(self.layout.weight_files(folder))
        if self.layout.adapter:
            other = self.transformers and self.transformers.written_file(self.layout.load_config(folder))
            checkpoint.adapter = Adapter(self.layout.adapter, checkpoint, other or WeightFile(folder))
        return checkpoint

    def release_of(self, checkpoint: Tensors, config: Config) -> Release | None:
        """The release that `checkpoint` is or was tuned from; None for random weights and other shapes."""
        for release in () if checkpoint.is_random else self.releases:
            published = self.config_of_size(release.size)
            is_same = self.variant(published) == self.variant(config)
            if is_same and checkpoint.has(expected_tensors(self.build_root(published))):
                return release
        return None

    def languages_of(self, folder: Path, config: Config) -> tuple[str, ...]:
        """Codes of the languages that a checkpoint names, in its configuration, by its voices, or in its
        model card. Empty if it names none. Raises CheckpointError.
        """
        files = {Path(name).stem for name in self.layout.voice_files(folder)}
        named = self.config_languages(config, files | {*self.layout.voice_names(config)})
        return tuple(sorted(named | card_languages(folder)))

    def licence_of(self, folder: Path, checkpoint: Tensors, config: Config) -> str:
        """Licence of the weights, for people, by the model card and by the release they are of."""
        if checkpoint.is_random:
            return NO_LICENCE_NEEDED
        suffix = f"; {self.licence}" if self.release_of(checkpoint, config) else ""
        return (card_licence(folder) or "as the checkpoint's") + suffix

    def is_folded(self, path: str) -> bool:
        """Whether the module at `path` is folded at export, so that no recipe may quantise it."""
        return any(fnmatchcase(path, pattern) for pattern in self.folded)
