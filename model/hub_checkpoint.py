"""Which files of a repository a checkpoint is read from. Imports no torch."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from voxport.model.checkpoint_layout import INDEX_SUFFIX, SUFFIX, TransformersLayout
from voxport.model.download import CARD
from voxport.model.families import FAMILIES, layouts_of
from voxport.model.foreign import ADAPTER_WEIGHTS

TEXTS = (".json", ".txt")
SHARD = r"-\d+-of-\d+"


def files_to_read(names: Collection[str], weights: Sequence[str] = ()) -> list[str]:
    """Paths of the files of a repository that a checkpoint is read from, those of weights last.

    Repositories have copies of the weights for other software. `weights` are names of files to read in place
    of the usual ones.
    """
    layouts = [
        layout
        for key in FAMILIES
        for layout in layouts_of(key)
        if not isinstance(layout, TransformersLayout)  # its files are those of another layout
    ]
    singles = [PurePosixPath(file.path) for layout in layouts for file in layout.single_files(Path())]
    stems: dict[str, list[str]] = {}
    for single in (*map(PurePosixPath, weights), *singles):
        stems.setdefault(str(single.parent), []).append(
            re.sub(f"{SHARD}|{re.escape(SUFFIX)}.*", "", single.name)
        )
    below = {folder for layout in layouts for folder in layout.folders}
    read, last = set[str](), set[str]()
    for folder in {".", *below, *stems}:
        inside = [name for name in names if str(PurePosixPath(name).parent) == folder]
        own = [name for name in inside if name.endswith((SUFFIX, SUFFIX + INDEX_SUFFIX))]
        if folder in stems:
            last |= _weights(own, stems[folder])
            inside = [name for name in inside if name not in own]
        read |= {name for name in inside if folder != "." or name.endswith(TEXTS) or name == CARD}
    return sorted(read) + sorted(last)


def _weights(names: Collection[str], stems: Sequence[str]) -> set[str]:
    """Files of one folder with the first of `stems` that it has, whole or in shards, and of an adapter."""
    adapter = {name for name in names if PurePosixPath(name).name == ADAPTER_WEIGHTS}
    for stem in stems:
        whole = {name for name in names if PurePosixPath(name).name == stem + SUFFIX}
        form = re.compile(f"{re.escape(stem)}({SHARD})?{re.escape(SUFFIX)}({re.escape(INDEX_SUFFIX)})?")
        if found := whole or {name for name in names if form.fullmatch(PurePosixPath(name).name)}:
            return found | adapter
    return adapter
