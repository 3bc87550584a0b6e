"""`Family`: the hooks of a model family."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel
from torch import nn

from voxport.bundle.errors import CheckpointError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import NO_LICENCE_NEEDED
from voxport.bundle.spec import LayoutName
from voxport.model.checkpoint import Checkpoint, Shapes, expected_tensors
from voxport.model.checkpoint_format import CheckpointFormat, Config
from voxport.model.component import Component
from voxport.model.mlx.layout_tags import check_layout_tags
from voxport.model.mlx.model import CONFIG as MLX_CONFIG
from voxport.model.mlx.model import MLX_WEIGHTS, NO_MLX, MlxModel, read_mlx_config
from voxport.model.model_card import card_languages
from voxport.model.shapes_only import shapes_only

# Any: each family has its own class of options and of checkpoint holder, which callers only pass on.
Options = Any
Root = Any
Distribution = tuple[np.float32, np.float32]


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

    Verification reports how far the codes of a teacher-forced run are from those of the option's default.
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


@dataclass(frozen=True)
class Synthetic:
    """Checkpoints of random weights in the published format.

    version: of the tiny checkpoint of seed 0; raise it when its bytes change.
    sizes: names of the available sizes.
    variants: kinds of the model that share the sizes; empty where there is one. Sizes of all but the first
        variant have its name as a suffix.
    config(size): the configuration, as `Family.parse_config` takes it.
    documents(size): contents of all JSON files, by path.
    distribution(name, shape, config): mean and standard deviation of a tensor's values.
    adjust(name, first, values, seed, config): changes a block of a tensor's rows in place, float32 [rows,
        width]; `first` is the index of the first row.
    extra_files(size): paths of all other files; write_extra_files(folder, size, seed) writes them.
    weight_files: prefix of the tensor names in each weight file; the longest prefix decides, and is not
        stored. float32_files are those in float32; the others are in bfloat16. All have `metadata`.
    flags(shapes): shapes of tensors that the published files have and the holders lack.
    """

    version: int
    sizes: tuple[str, ...]
    config: Callable[[str], Json]
    documents: Callable[[str], dict[str, Json]]
    distribution: Callable[[str, tuple[int, ...], Config], Distribution]
    weight_files: dict[str, str]
    adjust: Callable[[str, int, np.ndarray, int, Config], None] = lambda name, first, values, seed, config: (
        None
    )
    extra_files: Callable[[str], list[str]] = lambda size: []
    write_extra_files: Callable[[Path, str, int], None] = lambda folder, size, seed: None
    variants: tuple[str, ...] = ()
    float32_files: tuple[str, ...] = ()
    flags: Callable[[Shapes], Shapes] = lambda shapes: {}
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """Everything that export needs of a model family.

    Identity:
        licence: of the published weights, for people.
        task: the hub's name of what the model does, as in `text-to-speech`.
        languages: codes of ISO 639-1.
        config_languages(config, voices): codes that a configuration and names of voices say.
        releases: the published checkpoints.
        variant(config): distinguishes releases of equal shapes.
    Configuration and files:
        format: the files of a checkpoint.
        mlx: the files, names and layouts of mlx-audio; without a `model_type` where it lacks the family.
        parse_config(content, source), load_config(folder): the checked configuration.
        options: class of the options.
        option_defaults(config): defaults that depend on the configuration, by option.
        constants(config, options): what a runner needs besides names and shapes.
    Weights:
        weights(config): the holder of all tensors; its parameters have the published tensor names.
        weights_of_graph: module paths in the holder that each graph needs.
        unused: prefixes of tensor names that a checkpoint may have and no graph needs, with what would use
            them.
        all_weights(config): the holder with the unused tensors of known shapes, which conversions need for
            their layouts; None where `weights` has all.
        high_precision: patterns of module paths that are kept as floats unless a rule says otherwise.
        eight_bits: graphs whose weights have at least 8 bits unless `quant_for` says otherwise.
        exceeds_float16: graphs with values that half precision may not hold. Targets compute them in float32.
        constant: patterns of module paths that are folded into constants at export.
        reads(config, graph): how often one call of a graph reads the weights below a module path, where it
            is not once.
        parameter_groups: title of the parameters whose names begin with a prefix.
    Graphs:
        components(config, options, cache_length, layout): the components, without touching a module.
        build(graph, root, config, options, cache_length): the module of a graph from its loaded weights.
            Fusing removes weights from `root`, so a graph is built once from a root.
        longest_cache(config), default_cache(config, options): bound and default of `cache_length`, in rows;
            at least 64, also without a cache.
        verification: the components that verification calls in sequence.
    Texts:
        summary(config): rows of a configuration, for `inspect`.
        calls(constants, options): the order of calls, for authors of runners.
    """

    name: str
    title: str
    licence: str
    task: str
    languages: tuple[str, ...]
    format: CheckpointFormat
    parse_config: Callable[[Any, str], Config]
    load_config: Callable[[Path], Config]
    options: type[BaseModel]
    constants: Callable[[Config, Options], Json]
    weights: Callable[[Config], nn.Module]
    weights_of_graph: dict[str, tuple[str, ...]]
    components: Callable[[Config, Options, int, LayoutName], tuple[Component, ...]]
    build: Callable[[str, Root, Config, Options, int], nn.Module]
    longest_cache: Callable[[Config], int]
    default_cache: Callable[[Config, Options], int]
    verification: VerificationPlan
    parameter_groups: dict[str, str]
    summary: Callable[[Config], list[tuple[str, str]]]
    calls: Callable[[Json, Json], str]
    synthetic: Synthetic
    mlx: MlxModel = NO_MLX
    option_defaults: Callable[[Config], Json] = lambda config: {}
    releases: tuple[Release, ...] = ()
    variant: Callable[[Config], str] = lambda config: ""
    config_languages: Callable[[Config, Collection[str]], set[str]] = lambda config, voices: set()
    unused: dict[str, str] = field(default_factory=dict)
    all_weights: Callable[[Config], nn.Module] | None = None
    high_precision: tuple[str, ...] = ()
    eight_bits: tuple[str, ...] = ()
    exceeds_float16: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    reads: Callable[[Config, str], dict[str, int]] = lambda config, graph: {}

    def build_root(self, config: Config) -> nn.Module:
        """The holder of all tensors on the meta device: shapes without storage."""
        with shapes_only():
            return self.weights(config).requires_grad_(False)

    def build_all(self, config: Config) -> nn.Module:
        """As `build_root`, with the unused tensors of known shapes."""
        with shapes_only():
            return (self.all_weights or self.weights)(config).requires_grad_(False)

    def open_root(self, config: Config, checkpoint: Checkpoint) -> nn.Module:
        """The holder for a checkpoint, with every tensor checked and none loaded. Raises CheckpointError."""
        root = self.build_root(config)
        checkpoint.check(expected_tensors(root), tuple(self.unused))
        check_layout_tags(root, checkpoint, self.mlx)
        return root

    def config_of(self, folder: Path) -> Config:
        """The configuration of a published folder, or of a folder of mlx-audio. Raises CheckpointError."""
        name = self.mlx.published_config
        if name and not (folder / name).is_file() and (content := read_mlx_config(folder)):
            path = folder / MLX_CONFIG
            for section in self.mlx.sections:
                if not isinstance(found := content.get(section, {}), dict):
                    raise CheckpointError(
                        f"{path}: {section}: holds a {type(found).__name__}, expected an object; "
                        "convert the model again"
                    )
            return self.parse_config(self.mlx.restored(content), str(path))
        return self.load_config(folder)

    def unused_tensors(self, checkpoint: Checkpoint, config: Config) -> dict[str, tuple[str, ...]]:
        """Names of the tensors in `checkpoint` that no graph needs, by what would use them."""
        expected = expected_tensors(self.build_root(config))
        found: dict[str, tuple[str, ...]] = {}
        for prefix, use in self.unused.items():
            if names := tuple(name for name in checkpoint.below(prefix) if name not in expected):
                found[use] = (*found.get(use, ()), *names)
        return found

    def open_checkpoint(self, folder: Path) -> Checkpoint:
        """The tensors of a checkpoint. Raises CheckpointError."""
        files = self.format.weight_files(folder)
        there = any((folder / name).exists() for _, name in self.mlx.weights)
        if there and not any(file.path.exists() for file in files):
            raise CheckpointError(f"{folder}: {MLX_WEIGHTS}")
        return Checkpoint(files)

    def release_of(self, checkpoint: Tensors, config: Config) -> Release | None:
        """The release that `checkpoint` is or was tuned from; None for random weights and other shapes."""
        for release in () if checkpoint.is_random else self.releases:
            published = self.parse_config(self.synthetic.config(release.size), release.name)
            is_same = self.variant(published) == self.variant(config)
            if is_same and checkpoint.has(expected_tensors(self.build_root(published))):
                return release
        return None

    def languages_of(self, folder: Path, config: Config) -> tuple[str, ...]:
        """Codes of the languages that a checkpoint names, in its configuration, by its voices, or in its
        model card. Empty if it names none. Raises CheckpointError.
        """
        files = {Path(name).stem for name in self.format.voice_files(folder)}
        named = self.config_languages(config, files | {*self.format.voice_names(config)})
        return tuple(sorted(named | card_languages(folder)))

    def licence_of(self, checkpoint: Tensors, config: Config) -> str:
        """Licence of the weights of `checkpoint`, for people."""
        if checkpoint.is_random:
            return NO_LICENCE_NEEDED
        suffix = f"; {self.licence}" if self.release_of(checkpoint, config) else ""
        return f"that of the checkpoint{suffix}"

    def is_constant(self, path: str) -> bool:
        """Whether the module at `path` is folded at export, so that no recipe may quantise it."""
        return any(fnmatchcase(path, pattern) for pattern in self.constant)
