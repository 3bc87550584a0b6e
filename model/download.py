"""Files of checkpoints: JSON, the model card, and downloads that have not ended. Imports neither torch nor
pydantic.
"""

import json
import re
from pathlib import Path
from typing import Any

from voxport.bundle.errors import CheckpointNotFound, ConfigError
from voxport.bundle.names import language_code

# The hub's client, browsers and aria2 write these.
PARTIAL_SUFFIXES = (".incomplete", ".part", ".crdownload", ".download", ".aria2")
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
HUB_DOWNLOADS = ".cache/huggingface/download"  # below a folder that the hub's client fills
MAX_HEADER = 100_000_000  # bytes of a safetensors header, as the library bounds it
CARD = "README.md"
FENCE = "---"  # around the metadata of a card, as model hubs read it
LICENCE = re.compile(r"[A-Za-z0-9.+-]+")  # an identifier


def unfinished(path: Path) -> str | None:
    """Why the file at `path` lacks its content, and what to do; None if nothing says so."""
    if path.is_symlink() and not path.exists():
        return "a link to a file that does not exist; run the download again"
    for suffix in PARTIAL_SUFFIXES:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            return f"its download has not ended ({beside.name} exists); finish it"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            return "a Git LFS pointer instead of the content; run `git lfs pull` in its folder"
    return None


def missing(path: Path) -> str:
    """Why there may be no file at `path`, and what to do."""
    reason = unfinished(path)
    if reason:
        return f"missing: {reason}"
    found = partial_downloads(path.parent)
    if found:
        return f"missing, and a download has not ended ({found[0]}); finish it"
    return "missing; fetch it"


def truncated(path: Path) -> str | None:
    """How many bytes a safetensors file lacks; None if its header does not say so."""
    size = path.stat().st_size
    if size < 8:  # bytes of the length of the header
        return f"holds {size} bytes"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER:
            return None
    expected = 8 + length
    if size >= expected:
        try:
            expected += max(entry["data_offsets"][1] for entry in read_header(path).values())
        except (ValueError, LookupError, TypeError):
            return None
    return f"holds {size:,} of at least {expected:,} bytes" if size < expected else None


def read_header(path: Path) -> dict[str, Any]:
    """The entries of a safetensors file by name of the tensor; empty if it has no readable header."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            content = json.loads(file.read(length)) if length <= MAX_HEADER else {}
            return {name: entry for name, entry in content.items() if "shape" in entry}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return {}


def read_json(folder: Path, name: str) -> Any:
    """Raises CheckpointNotFound or ConfigError."""
    path = folder / name
    if not path.is_file():
        raise CheckpointNotFound(f"{folder} is no checkpoint: it has no {name}; give a folder as published")
    if reason := unfinished(path):
        raise ConfigError(f"{path}: {reason}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is not a readable object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def partial_downloads(folder: Path) -> list[Path]:
    """Unfinished downloads in `folder`, in its sub-folders, or among the blobs of the hub's cache."""
    places = [folder, *(path for path in folder.glob("*") if path.is_dir()), folder / HUB_DOWNLOADS]
    if folder.parent.name == "snapshots":
        places.append(folder.parents[1] / "blobs")
    places += [path for path in (folder / HUB_DOWNLOADS).glob("*") if path.is_dir()]
    return [path for place in places for path in sorted(place.glob("*")) if path.suffix in PARTIAL_SUFFIXES]


def snapshots(folder: Path) -> list[Path]:
    """The folders of checkpoints, if `folder` is a repository in the hub's cache or the cache itself."""
    return sorted(folder.glob("snapshots/*")) or sorted(folder.glob("models--*/snapshots/*"))


def _card(folder: Path) -> dict[str, Any]:
    """The metadata of the card; empty without a readable one. All values are texts, lists or dicts."""
    import yaml

    try:
        text = (folder / CARD).read_text(encoding="utf-8-sig")
        start, _, rest = text.partition("\n")
        head = rest.partition(f"\n{FENCE}")[0] if start.strip() == FENCE else ""
        content = yaml.load(head, yaml.BaseLoader)  # texts only: for others the code `no` is the value false
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def card_licence(folder: Path) -> str:
    """The licence that the card names, in the spelling of SPDX; empty if it names none."""
    found = str(_card(folder).get("license", ""))
    is_known = LICENCE.fullmatch(found) and found not in ("other", "unknown")
    return found.upper().replace("APACHE", "Apache") if is_known else ""


def card_languages(folder: Path) -> set[str]:
    """ISO 639 codes of the languages that the card names."""
    found = _card(folder).get("language")
    names = found if isinstance(found, list) else [found]
    return {code for name in names if isinstance(name, str) and (code := language_code(name))}
