"""Results of an evaluation: a row for each sentence, and figures of all."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Figures = dict[str, float]
LINES = {  # how a figure is shown: its name, and the factor and unit of its value
    "wer": ("word error rate", 100, "%"),
    "wer_full": ("word error rate in full precision", 100, "%"),
    "wer_recordings": ("word error rate of the recordings", 100, "%"),
    "wer_live": ("word error rate, live", 100, "%"),
    "live_equal": ("sentences with the same text live", 100, "%"),
    "text_equal": ("sentences with the text of full precision", 100, "%"),
    "not_ended": ("sentences that do not end by themselves in time", 100, "%"),
    "stopped_early": ("sentences that stop early", 100, "%"),
    "codes_equal": ("codes as in full precision, first codebook", 100, "%"),
    "other_codes_equal": ("codes as in full precision, other codebooks", 100, "%"),
    "log_mel_db": ("log-mel distance to full precision", 1, "dB"),
    "duration_ratio": ("duration, over the expected one", 1, ""),
}


@dataclass(frozen=True)
class Evaluation:
    """`rows` are JSON objects, one per sentence. `figures` have the keys of `LINES`. `bytes` is the size of
    the bundle.
    """

    bundle: str
    family: str
    target: str
    recipe: str
    bytes: int
    recogniser: str
    figures: Figures
    rows: tuple[Mapping[str, Any], ...]

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def summary(found: Evaluation) -> str:
    """Text: a line for each figure."""
    width = max(len(LINES[key][0]) for key in found.figures)
    lines = [f"{found.bundle}: {len(found.rows)} sentences, heard by {found.recogniser}"]
    for key, value in found.figures.items():
        name, factor, unit = LINES[key]
        lines.append(f"  {name:<{width}} {value * factor:>8.2f} {unit}".rstrip())
    return "\n".join(lines)


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Text: a line for each part, with the columns that the rows have."""
    keys = [key for key in LINES if key in rows[0]]
    width = max(len(row["part"]) for row in rows)
    header = f"{'part':<{width}} {'weights':>10} " + " ".join(f"{key:>18}" for key in keys)
    lines = [
        f"{row['part']:<{width}} {row['weights']:>10} "
        + " ".join(f"{row[key] * LINES[key][1]:>15.2f} {LINES[key][2]:<2}" for key in keys)
        for row in rows
    ]
    legend = [f"  {key}: {LINES[key][0]}" for key in keys]
    return "\n".join([header, *lines, "", *legend])


def mean(values: Sequence[float]) -> float:
    """0.0 where there are none."""
    return float(np.mean(values)) if values else 0.0
