"""Constants of the toy family, which its model half writes and its runtime half reads."""

from voxport.bundle.bounds import Count
from voxport.bundle.manifest import FamilyConstants


class Constants(FamilyConstants):
    dim: Count
    gain: float
