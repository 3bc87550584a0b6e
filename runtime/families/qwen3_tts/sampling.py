"""How the codes of a frame are drawn: the defaults of a checkpoint, and what a request changes."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from voxport.bundle.constants.qwen3_tts import Constants, SamplingConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import first_fault
from voxport.runtime.sampler import SamplerSettings

OTHERS, SUB = "others_", "sub_"  # before a setting of the code predictor: in a manifest, in a request
MIN_TEMPERATURE = 1e-3  # above 0; float32 logits divided by a far lower one are infinite


@dataclass(frozen=True)
class Sampling:
    """The first code of a frame is drawn with `first`, the others with `others`, which has no penalty."""

    first: SamplerSettings
    others: SamplerSettings


def sampling_of(constants: Constants, changes: Mapping[str, float] | None = None) -> Sampling:
    """The defaults with other values by name: as in `SamplingConstants`, with `sub_` for `others_`.

    Raises UsageError that names a wrong one.
    """
    changes = changes or {}
    names = {OTHERS + name.removeprefix(SUB) if name.startswith(SUB) else name: name for name in changes}
    for key, name in names.items():
        if key not in SamplingConstants.model_fields:
            raise UsageError(f"{name} {changes[name]}: no such setting of sampling", field=name)
    values = constants.sampling_defaults.model_dump() | {key: changes[name] for key, name in names.items()}
    try:
        found = SamplingConstants.model_validate(values)
    except ValidationError as error:
        key, _, reason = first_fault(error).partition(": ")
        name, reason = names[key], reason.removeprefix("Input ")
        raise UsageError(f"{name} {changes[name]}: {reason}", field=name) from None
    for name, value in changes.items():
        if name.endswith("temperature") and 0 < value < MIN_TEMPERATURE:
            raise UsageError(f"{name} {value}: expected 0, or at least {MIN_TEMPERATURE}", field=name)
    return Sampling(
        SamplerSettings(found.temperature, found.top_k, found.top_p, found.repetition_penalty),
        SamplerSettings(found.others_temperature, found.others_top_k, found.others_top_p),
    )
