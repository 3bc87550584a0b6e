"""Shared parts of the records that a manifest consists of."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

MAX_PATH_BYTES = 200  # every file system takes that


def _check_relative(path: str) -> str:
    plain = path.isprintable() and len(path.encode()) <= MAX_PATH_BYTES and not {"\\", ":"} & set(path)
    inside = bool(path) and not path.startswith("/") and ".." not in PurePosixPath(path).parts
    if not (plain and inside and str(PurePosixPath(path)) == path):
        raise ValueError(f"{path[:100]!r} is not a plain path inside the bundle")
    return path


RelativePath = Annotated[str, AfterValidator(_check_relative)]


class Record(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def first_fault(error: ValidationError) -> str:
    """`key: what is wrong` for the first error."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].removeprefix('Value error, ')}"
