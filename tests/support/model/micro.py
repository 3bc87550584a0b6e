"""Checkpoints of one layer, for tests that need a model and no quality."""

from pathlib import Path

from filelock import FileLock

from voxport.bundle.user_cache import user_cache
from voxport.model.embedded import embedded_name
from voxport.model.families import DEFAULT, open_family
from voxport.model.synthetic.checkpoint import random_checkpoint, write_checkpoint


def micro_checkpoint(key: str = DEFAULT) -> Path:
    """A family's smallest checkpoint with seed 0, in the cache folder of the tests."""
    if "micro" not in open_family(key).synthetic.sizes:
        return random_checkpoint(key)
    folder = user_cache() / "micro" / embedded_name(key)  # bundles have the name of the folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            write_checkpoint(folder, "micro", key=key)
    return folder
