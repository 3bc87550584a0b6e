"""A prefix cache for streams that come from no bundle."""

from support.files import private_folder
from support.stand_ins import stand_in

from voxport.bundle.manifest import MANIFEST
from voxport.runtime.prefix_cache import WRITER, PrefixCache


def wait_until_written() -> None:
    WRITER.submit(lambda: None).result()


def private_prefix_cache() -> PrefixCache:
    """A cache whose rows no other one reads."""
    folder = private_folder()
    (folder / MANIFEST).write_text(f'"{folder}"')
    return PrefixCache(stand_in(folder=folder), "test")
