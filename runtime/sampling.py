"""`SAMPLING`: the settings of a model that draws codes. Commands read it before NumPy is imported."""

from numbers import Real

SAMPLING = {  # settings of a model that draws codes; `sub_*` are of the codes of a frame behind the first
    "temperature": "divides the logits; 0 takes the largest one",
    "top_k": "number of codes that may be drawn; 0 is all",
    "top_p": "draws among the most probable codes that make up this share",
    "repetition_penalty": "makes codes that were drawn before less probable; 1 has no effect",
    "sub_temperature": "as --temperature, for the other codes of a frame",
    "sub_top_k": "as --top-k, for the other codes of a frame",
    "sub_top_p": "as --top-p, for the other codes of a frame",
}


def is_number(value: object) -> bool:
    """Whether it is a real number; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)
