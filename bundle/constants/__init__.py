"""The constants of each family: numbers that its runner needs besides names and shapes.

`model` writes them to the manifest, and `runtime` reads them with the same record.
"""

from typing import Self

from pydantic import ValidationError

from voxport.bundle.errors import IntegrityError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import ManifestRecord, first_fault


class FamilyConstants(ManifestRecord):
    """Base of the records."""

    @classmethod
    def parse(cls, values: Json) -> Self:
        """From `constants` of a manifest. Raises IntegrityError that names a wrong one."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise IntegrityError(
                f"manifest.json: constants: {first_fault(error)}; export the bundle again"
            ) from None
