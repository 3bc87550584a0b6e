"""The phonemes of espeak-ng's English voices, as classes."""

from voxport.model.training.data.espeak import PAUSE

_OTHER = "other"
_ENGLISH = """
    n t s I d r l k E z m D i: p @ a f 3 eI aI V w @2 b v oU h i u: t# 0 I2 T g I# aU O2 S N @L j ; 3: a# dZ
    tS e@ A@ aa O: O@ o@ U@ U r- i@3 Z A: OI t2 aI3 i@ ? n- @- aI@
"""
PHONEMES = (PAUSE, _OTHER, *_ENGLISH.split())
_NUMBERS = {name: number for number, name in enumerate(PHONEMES)}


def phoneme_class(name: str) -> int:
    """The class of a phoneme's name. All pauses are class 0, and unknown names are class 1."""
    return 0 if name.startswith(PAUSE) else _NUMBERS.get(name, 1)
