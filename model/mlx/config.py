"""Compares `config.json` of a folder of mlx-audio with the published configuration and with the weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from voxport.model.family import Family
from voxport.model.mlx.layout import (
    CONFIG,
    MODEL_TYPE,
    OWN_KEYS,
    QUANTIZATION,
    quantization_of,
    read_mlx_config,
)

CONVERT_AGAIN = "convert the model again"
DEFAULT = {"group_size": 64, "bits": None, "mode": "affine"}  # of mlx-audio, for all layers without an entry
Packed = Mapping[str, tuple[int, int]]  # bits and group by path of the layer


def config_faults(folder: Path, family: Family, packed: Packed) -> list[str]:
    """What `config.json` says otherwise; empty without one. Raises CheckpointError.

    `packed` are the layers that have integers, by the paths in the file of weights. A key that only one side
    has is no fault: mlx-audio has defaults.
    """
    path, content = folder / CONFIG, read_mlx_config(folder)
    if not path.is_file() or not family.mlx.model_type:
        return []
    faults = []
    kind = content.get(MODEL_TYPE)
    if kind != family.mlx.model_type:
        faults.append(f"{path}: {MODEL_TYPE}: {kind!r}, expected {family.mlx.model_type!r}; {CONVERT_AGAIN}")
    faults += [f"{path}: {fault}; {CONVERT_AGAIN}" for fault in _quantization_faults(folder, packed)]
    published = family.mlx.published_config
    if published and (folder / published).is_file():
        own = {name: value for name, value in content.items() if name not in OWN_KEYS}
        difference = differing_value(own, family.mlx.mlx_config(folder))
        if difference:
            key, found, expected = difference
            faults.append(
                f"{path}: {key}: {found!r}, expected {expected!r} as in {published}; {CONVERT_AGAIN}"
            )
    return faults


def differing_value(
    found: JsonValue, expected: JsonValue, key: str = ""
) -> tuple[str, JsonValue, JsonValue] | None:
    """Key and both values of the first difference, among the keys that both have."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return None if found == expected else (key, found, expected)
    for name in (name for name in expected if name in found):
        difference = differing_value(found[name], expected[name], f"{key}.{name}".lstrip("."))
        if difference:
            return difference
    return None


def _quantization_faults(folder: Path, packed: Packed) -> Iterator[str]:
    content = quantization_of(folder)
    if not content and packed:
        yield f"{QUANTIZATION}: missing, and {len(packed)} layers have integers, such as {min(packed)}"
        return
    default = {key: content.get(key, value) for key, value in DEFAULT.items()}
    for path, (bits, group) in sorted(packed.items()):
        entry = content.get(path, default)
        expected = {"group_size": group, "bits": bits, "mode": "affine"}
        found = default if entry is True else entry
        if isinstance(found, dict):
            found = {key: found.get(key, value) for key, value in default.items()}
        if found != expected:
            yield f"{QUANTIZATION}.{path}: {_text(found)}, expected {_text(expected)} as the integers have"
    for path, entry in content.items():
        if path not in DEFAULT and path not in packed and entry is not False:
            yield f"{QUANTIZATION}.{path}: {_text(entry)}, and the layer has no integers"
    if content and not packed:
        yield f"{QUANTIZATION}: there, and no layer has integers"


def _text(entry: object) -> str:
    """A few words for an entry."""
    if isinstance(entry, dict):
        return f"{entry.get('bits')} bits in groups of {entry.get('group_size')}"
    return repr(entry)
