"""Schemes: the ways to store one weight.

Importing this package registers the built-in schemes and does not import torch.
"""

from quantize.schemes.base import SCHEMES, Scheme, Storage, register_scheme, scheme_from_dict
from quantize.schemes.integer import IntegerScheme
from quantize.schemes.palette import PaletteScheme

__all__ = [
    "SCHEMES",
    "IntegerScheme",
    "PaletteScheme",
    "Scheme",
    "Storage",
    "register_scheme",
    "scheme_from_dict",
]
