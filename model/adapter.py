"""LoRA adapters of peft. `Adapter` merges one into the tensors of a checkpoint, as each of them is read.

W + scale · B · A in float32, then in the dtype of W. `scale` is alpha / rank, or alpha / sqrt(rank).
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import Field

from voxport.bundle.errors import CheckpointError
from voxport.model.checkpoint import Checkpoint
from voxport.model.checkpoint_layout import WeightFile
from voxport.model.config import Few, Section, parse_params
from voxport.model.download import read_json
from voxport.model.foreign import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MERGE_FIRST

PREFIX = "base_model.model."  # before each name of the base
LORA = re.compile(
    r"(.+)\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(?:\.default)?(\.weight|\.bias|)"
)
WRAPPERS = re.compile(r"\b(base_layer|modules_to_save(\.default)?)\.")  # in names of whole tensors
NOT_MERGED = (  # keys that change the arithmetic, or the base
    *("use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config"),
    *("monteclora_config", "layer_replication", "target_parameters", "trainable_token_indices"),
)
KEPT_BASE = (True, False, None, "gaussian", "eva", "orthogonal")  # other initial weights change the base
OTHER_BASE = "give the base that the adapter was trained on"


class LoraConfig(Section):
    """`adapter_config.json` of peft. Patterns are regular expressions of the ends of module paths."""

    base_model_name_or_path: str | None = None
    r: Few
    lora_alpha: float = Field(allow_inf_nan=False)
    use_rslora: bool = False
    rank_pattern: dict[str, float] | None = None
    alpha_pattern: dict[str, float] | None = None

    def rank(self, path: str) -> float:
        return _value(self.rank_pattern, path, self.r)

    def scale(self, path: str, rank: int) -> float:
        alpha = _value(self.alpha_pattern, path, self.lora_alpha)
        return float(alpha / (rank**0.5 if self.use_rslora else rank))


def _value(patterns: Mapping[str, float] | None, path: str, default: float) -> float:
    matching = (value for key, value in (patterns or {}).items() if re.fullmatch(rf"(.*\.)?({key})", path))
    return next(matching, default)


@dataclass(frozen=True)
class _Update:
    """What changes a tensor. `layer` is the tensor's own name for the adapter.

    `parts` are the names of B and A in the adapter, or of one tensor: a bias that is added, or a whole tensor
    if there is no scale. `norms` is the name of DoRA's magnitudes of the rows of the sum.
    """

    layer: str
    parts: tuple[str, ...]
    scale: float | None = None
    is_table: bool = False
    norms: str | None = None


class Adapter:
    """The adapter in `folder`, for the tensors of `base`. Loads no weight.

    `naming` knows names and rows of transformers, if the adapter may have them and the base may not.

    Raises IntegrityError that names what the adapter has and is not merged, or a tensor that the base does
    not have in that shape.
    """

    def __init__(self, folder: Path, base: Checkpoint, naming: WeightFile):
        self.path, self._base, self._naming = folder / ADAPTER_WEIGHTS, base, naming
        self.config = _read_config(folder)
        self._tensors = Checkpoint([WeightFile(self.path)])
        self._updates = self._placed(self._read())
        self._check_shapes()

    def __str__(self) -> str:
        made_for, count = self.config.base_model_name_or_path or "its base", len(self._updates)
        rank = f"LoRA of rank {self.config.r} for {made_for}"
        return f"adapter {self.path.parent}: {rank}, merged into {count} tensors"

    def _fault(self, name: str, text: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {name}: {text}")

    def _read(self) -> list[_Update]:
        """The whole tensors come first, because a layer may be replaced and updated."""
        layers: dict[str, dict[str, str]] = defaultdict(dict)
        updates = []
        for name in sorted(self._tensors.names):
            own = name.removeprefix(PREFIX)
            if match := LORA.fullmatch(own):
                layers[match[1]][match[2] + match[3].replace(".weight", "")] = name
            elif "lora_" in own or "token_adapter." in own:
                raise self._fault(name, f"a kind of tensor that is not merged; {MERGE_FIRST}")
            else:
                updates.append(_Update(WRAPPERS.sub("", own), (name,)))
        for path, parts in layers.items():
            updates += self._layer(path, parts)
        if not updates:
            raise CheckpointError(f"{self.path}: has no tensor; fetch it again")
        return updates

    def _layer(self, path: str, parts: Mapping[str, str]) -> list[_Update]:
        is_table = "embedding_A" in parts
        names = [f"embedding_{each}" if is_table else each for each in "BA"]
        if not set(names) <= parts.keys():
            raise self._fault(path, "has one of A and B, expected both; fetch the adapter again")
        pair = tuple(parts[each] for each in names)
        rank, expected = self._tensors.shape(pair[1])[0], self.config.rank(path)
        if rank != expected:
            raise self._fault(pair[1], f"rank {rank}, {expected:g} expected from {ADAPTER_CONFIG}")
        scale = self.config.scale(path, rank)
        found = [_Update(f"{path}.weight", pair, scale, is_table, parts.get("magnitude_vector"))]
        bias = parts.get("B.bias")
        return [*found, _Update(f"{path}.bias", (bias,), scale)] if bias else found

    def _placed(self, updates: list[_Update]) -> dict[str, list[_Update]]:
        """Updates by the name of the tensor in the base. An adapter of a part of the model leaves the name of
        the part out.
        """
        layers, published = [update.layer for update in updates], self._naming.published

        def absent(root: str) -> list[str]:
            return [layer for layer in layers if published(root + layer) not in self._base.names]

        first = layers[0]
        ends = (name for name in sorted(self._base.names) if name.endswith(f".{first}"))
        roots = [name.removesuffix(first) for name in ends]
        fitting = [root for root in roots if not absent(root)] if absent("") else [""]
        if len(fitting) > 1:
            found = " and ".join(root + first for root in fitting)
            raise self._fault(first, f"may be {found}; save the adapter of the whole model")
        if not fitting:
            missing = min(map(absent, ("", *roots)), key=len)
            absent_of = f"{len(missing)} of {len(layers)} tensors are not in the base"
            raise self._fault(missing[0], f"{absent_of}; {OTHER_BASE}")
        placed: dict[str, list[_Update]] = defaultdict(list)
        for update in updates:
            placed[published(fitting[0] + update.layer)].append(update)
        return placed

    def _check_shapes(self) -> None:
        for name, updates in self._updates.items():
            expected = self._base.shape(name)
            for update in updates:
                first, *rest = (self._tensors.shape(part) for part in update.parts)
                inputs = rest[0][1:] if rest else first[1:]
                shape = (*inputs, first[0]) if update.is_table else (first[0], *inputs)
                if shape != expected:
                    differ = f"made for {list(shape)}, but it is {list(expected)} in {self._base.path(name)}"
                    raise self._fault(update.layer, f"{differ}; {OTHER_BASE}")

    def __call__(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The tensor `name` of the base with what the adapter changes. Raises CheckpointError."""
        if name not in self._updates:
            return weight
        value = weight.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        for update in self._updates[name]:
            first, *rest = (self._tensors.tensor(part).float() for part in update.parts)
            first = self._naming.restored(update.layer, first)
            if update.scale is None:
                value = first.contiguous()
            elif not rest:
                value.add_(first, alpha=update.scale)
            else:  # in place: a table of tokens takes a GB, and each copy another one
                rows = value.T if update.is_table else value.flatten(1)
                rows.addmm_(first.flatten(1), rest[0].flatten(1), alpha=update.scale)
                self._rescale(rows, update)
        return value.to(weight.dtype)

    def _rescale(self, rows: torch.Tensor, update: _Update) -> None:
        """Gives each row its norm of DoRA, in place."""
        if update.norms:
            norms = self._tensors.tensor(update.norms).float().reshape(-1, 1)
            rows *= self._naming.restored(update.layer, norms) / rows.norm(dim=1, keepdim=True)


def _read_config(folder: Path) -> LoraConfig:
    """Raises IntegrityError on a kind of adapter that is not merged."""
    path = folder / ADAPTER_CONFIG
    content = read_json(folder, ADAPTER_CONFIG)
    if isinstance(content, dict):
        found = [] if content.get("peft_type") == "LORA" else [f"peft_type {content.get('peft_type')}"]
        found += [key for key in NOT_MERGED if content.get(key)]
        if (start := content.get("init_lora_weights")) not in KEPT_BASE:
            found.append(f"init_lora_weights {start}, which changes the base")
        if found:
            raise CheckpointError(f"{path}: {', '.join(found)}: not merged; {MERGE_FIRST}")
    return parse_params(LoraConfig, content, str(path))
