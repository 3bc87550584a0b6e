"""Checkpoints of the smallest size, for tests that need a model and no quality."""

from pathlib import Path

from filelock import FileLock

from voxport.bundle.user_cache import user_cache
from voxport.model.families import DEFAULT, public_name
from voxport.model.synthetic.checkpoint import write_checkpoint


def micro_checkpoint(key: str = DEFAULT) -> Path:
    """A family's checkpoint of one layer with seed 0, in the cache folder of the tests."""
    folder = user_cache() / f"{public_name(key)}-micro"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            write_checkpoint(folder, "micro", key=key)
    return folder
