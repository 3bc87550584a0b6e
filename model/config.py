"""Shared by the configurations of all families: bounds, the shape of a stack, checks of JSON."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from typing_extensions import TypeVar

from voxport.bundle.errors import ConfigError

# Bounds far above any model, so that no number makes building its shapes endless.
Size = Annotated[int, Field(gt=0, le=1 << 20)]
Few = Annotated[int, Field(gt=0, le=1 << 10)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A caller that has a family without knowing which one needs the bound only.
Config = TypeVar("Config", bound=BaseModel, default=BaseModel)
SHAPE = ("dim", "n_layers", "head_dim", "hidden_dim", "n_heads", "n_kv_heads")


def require(holds: bool, message: str) -> None:
    """Raises ValueError, for validators."""
    if not holds:
        raise ValueError(message)


class Section(BaseModel):
    """Part of a configuration file. Immutable; keys that inference does not need are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class BlockArgs(Section):
    """Shape of a pre-norm block."""

    dim: Size
    head_dim: Size
    hidden_dim: Size
    n_heads: Size
    n_kv_heads: Size


class TransformerArgs(BlockArgs):
    """Shape of a stack of pre-norm blocks."""

    n_layers: Few
    norm_eps: Positive = 1e-5

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        heads, kv_heads = self.n_heads, self.n_kv_heads
        require(heads % kv_heads == 0, f"n_heads {heads} is not a multiple of n_kv_heads {kv_heads}")
        require(self.head_dim % 2 == 0, f"head_dim {self.head_dim} is odd; RoPE rotates pairs")
        return self


class MistralConfig(TransformerArgs):
    """The top level of `params.json`: the decoder."""

    use_biases: Literal[False] = False
    causal: Literal[True] = True
    model_parallel: Literal[1] = 1
    vocab_size: Size
    rope_theta: Positive


def parse_params(kind: type[Config], params: Any, source: str) -> Config:
    """Validates parsed JSON of any content.

    `source` names the file in errors. Raises ConfigError with the key, the value found and what was expected,
    for each fault.
    """
    try:
        return kind.model_validate(params)
    except ValidationError as error:
        faults = [f"{source}: {_fault(each)}" for each in error.errors(include_url=False)]
        raise ConfigError(*faults) from None


def _fault(error: ErrorDetails) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "top level"
    found = "" if error["type"] in ("missing", "value_error") else f", found {str(error['input'])[:60]!r}"
    return f"{key}: {error['msg'].removeprefix('Value error, ')}{found}; give a checkpoint as published"


def values_of(section: Section, *keys: str) -> str:
    """`dim 3072, n_layers 26`, for people."""
    return ", ".join(f"{key} {getattr(section, key)}" for key in keys)


class QwenBlockConfig(Section):
    """Shape of a stack of pre-norm blocks with grouped-query attention, under Qwen's names."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Few
    num_attention_heads: Few
    num_key_value_heads: Few
    head_dim: Size
    rope_theta: Positive
    rms_norm_eps: Positive
    hidden_act: Literal["silu"]
    attention_bias: Literal[False]

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        require(
            heads % kv_heads == 0,
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}",
        )
        require(self.head_dim % 2 == 0, f"head_dim {self.head_dim} is odd; RoPE rotates pairs")
        return self
