"""`Job`: a conversion that is about to be written."""

from dataclasses import dataclass
from pathlib import Path

from voxport.export.conversion.outputs import Conversion
from voxport.export.conversion.plan import Plan
from voxport.model.config import Config
from voxport.model.family import Family
from voxport.model.stored_weights import StoredWeights


@dataclass(frozen=True)
class Job:
    """The source, what was asked for, and what follows from both."""

    folder: Path
    family: Family
    config: Config
    source: StoredWeights
    conversion: Conversion
    plan: Plan
