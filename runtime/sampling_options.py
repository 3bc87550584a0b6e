"""`SAMPLING`: the settings of a model that draws codes. Commands read it before NumPy is imported."""

from collections.abc import Mapping
from numbers import Real

from voxport.bundle.errors import UsageError

SAMPLING = {  # settings of a model that draws codes; `sub_*` are of the codes of a frame behind the first
    "temperature": "divides the logits; 0 takes the largest one",
    "top_k": "number of codes that may be drawn; 0 is all",
    "top_p": "draws among the most probable codes that make up this share",
    "repetition_penalty": "makes codes that were drawn before less probable; 1 has no effect",
    "sub_temperature": "as temperature, for the other codes of a frame",
    "sub_top_k": "as top_k, for the other codes of a frame",
    "sub_top_p": "as top_p, for the other codes of a frame",
}


def is_number(value: object) -> bool:
    """Whether it is a real number; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_sampling(sampling: Mapping[str, float] | None) -> None:
    """Raises UsageError if it is no mapping of names in `SAMPLING` to numbers."""
    if sampling is not None and not isinstance(sampling, Mapping):
        raise UsageError(f"sampling {sampling!r}: expected a mapping of names to numbers", field="sampling")
    for name, number in (sampling or {}).items():
        if name not in SAMPLING or not is_number(number):
            raise UsageError(
                f"sampling {name}={number!r}: expected numbers of {', '.join(SAMPLING)}", field="sampling"
            )
