"""A run of `bench` beside stored ones."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from voxport.bundle.errors import UsageError
from voxport.runtime.families.workload import Figures

COMPARED = (("bundle", ("name", "target", "recipe")), ("machine", ("processor", "threads")))


def read_runs(paths: list[Path]) -> dict[str, Figures]:
    """Runs that `bench --json` wrote, by the names of their files, or by their paths if two have one name.

    Raises UsageError.
    """
    runs: dict[str, Figures] = {}
    names = [path.name for path in paths]
    for path in paths:
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
            dict(_times(found))
            if not all(isinstance(found[part], dict) for part, _ in COMPARED):
                raise TypeError
        except OSError as error:
            raise UsageError(f"against: {path}: cannot be read: {error.strerror}", field="against") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"against: {path}: is no run of `voxport bench --json`; give its output", field="against"
            ) from None
        runs[path.name if names.count(path.name) == 1 else str(path)] = found
    return runs


def against_text(result: Figures, runs: Mapping[str, Figures]) -> str:
    """A table of the times of this run, of each stored run, and of this over the stored one; then what else
    differs between them.
    """
    stored = {name: dict(_times(run)) for name, run in runs.items()}
    lines = [f"{'against':<16} {'this':>10}" + "".join(f" {name[-20:]:>20} {'ratio':>6}" for name in stored)]
    for name, own in _times(result):
        cells = [_cells(own, times.get(name)) for times in stored.values()]
        lines.append(f"{name:<16} {own:>7.2f} ms" + "".join(cells))
    for name, run in runs.items():
        differing = [
            f"{key} {run[part].get(key)}"
            for part, keys in COMPARED
            for key in keys
            if run[part].get(key) != result[part][key]
        ]
        if differing:
            lines.append(f"{name} has {', '.join(differing)}")
    return "\n".join(lines)


def _cells(own: float, other: float | None) -> str:
    return f" {'-':>20} {'-':>6}" if not other else f" {other:>17.2f} ms {own / other:>6.2f}"


def _times(run: Figures) -> Iterator[tuple[str, float]]:
    """Names and ms of the times that a run has, the whole ones first."""
    yield "loading", 1e3 * float(run["load_s"])
    for name in run:
        if name in ("first_sound_s", "first_token_s", "recording_s"):
            yield "first output", 1e3 * float(run[name])
    yield "frame", float(run["frame"]["median_ms"])
    for name, row in run["components"].items():
        yield name, float(row["median_ms"])
    for row in run["streams"]:
        yield f"{row['streams']} streams", float(row["pass_ms"])
