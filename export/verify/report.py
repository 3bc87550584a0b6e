"""The result of verification: its stored form, the table for people, and a line for each failure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bundle.manifest import Verification
from export.verify.comparison import Check, Comparison, Report, Result, finite

HEADINGS = (
    f"{'component':<14} {'output':<16} {'check':<36} {'lowering':>9} {'bar':>7} {'worst':>9} {'beyond':>7} "
    f"{'allowed':>7} {'distance':>9} {'bar':>7} {'margin':>8} {'quantisation':>13} {'bar':>7}"
)


@dataclass(frozen=True)
class VerificationResult:
    """All checks of a bundle. `reports` are measured values without a bar, by name."""

    rows: tuple[Comparison | Check, ...]
    reports: dict[str, dict[str, float]]

    @classmethod
    def of(cls, results: Iterable[Result]) -> "VerificationResult":
        found = list(results)
        return cls(
            tuple(result for result in found if not isinstance(result, Report)),
            {result.name: result.values for result in found if isinstance(result, Report)},
        )

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    @property
    def status(self) -> Literal["passed", "failed"]:
        return "passed" if self.passed else "failed"

    def stored(self) -> Verification:
        """The form of the manifest and of `verify.json`."""
        return Verification(
            status=self.status, rows=tuple(row.row() for row in self.rows), reports=self.reports
        )

    def report(self) -> str:
        """The content of `verify.json`."""
        return json.dumps(self.stored().model_dump(mode="json"), indent=1) + "\n"


def table(result: VerificationResult) -> str:
    """Text: a line per comparison with errors, bars and margin, then other checks, reports and the status."""
    comparisons = [row for row in result.rows if isinstance(row, Comparison)]
    checks = [row for row in result.rows if isinstance(row, Check)]
    left_out = sum(check.left_out for check in checks)
    count, passed = len(result.rows) - left_out, sum(row.passed for row in result.rows) - left_out
    suffix = f", {left_out} left out" if left_out else ""
    lines = [
        HEADINGS,
        *map(_comparison_line, comparisons),
        *map(_check_line, checks),
        *(
            f"       {name}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items())
            for name, values in result.reports.items()
        ),
        f"{result.status}: {passed} of {count} checks hold{suffix}{_smallest_margin(comparisons)}",
    ]
    return "\n".join(lines)


def failures(result: VerificationResult) -> list[str]:
    """A line for each check that failed."""
    return [
        _failed_comparison(row) if isinstance(row, Comparison) else f"{row.name}: {row.detail}"
        for row in result.rows
        if not row.passed
    ]


def _comparison_line(row: Comparison) -> str:
    margin = finite(row.margin)
    factor = "-" if margin is None else f"{margin:.1f}x" if margin < 1000 else ">1000x"
    return (
        f"{row.component:<14} {row.output:<16} {row.name:<36} {_short(row.typical):>9} "
        f"{_short(row.float_bar):>7} {_short(row.worst):>9} {row.beyond:>7.0%} "
        f"{row.beyond_allowed:>7.0%} {_short(row.distance):>9} {_short(row.distance_bar):>7} {factor:>8} "
        f"{_short(row.quantisation_error):>13} {_short(row.quantisation_bar):>7} "
        f"{'' if row.passed else 'FAILED'}"
    ).rstrip()


def _check_line(row: Check) -> str:
    if row.left_out:
        return f"-      {row.name}: left out, {row.detail}"
    return f"{'ok    ' if row.passed else 'FAILED'} {row.name}: {row.detail}"


def _smallest_margin(comparisons: list[Comparison]) -> str:
    margins = [
        (row.margin, f"{row.component}.{row.output}, {row.name}")
        for row in comparisons
        if finite(row.margin) is not None
    ]
    return "; smallest margin {:.1f}x at {}".format(*min(margins)) if margins else ""


def _failed_comparison(row: Comparison) -> str:
    factor = f"{1 / row.margin:.1f} times what is allowed, " if 0 < row.margin < 1 else ""
    text = (
        f"{row.component}.{row.output} ({row.name}): {factor}error {_short(row.typical)}, "
        f"bar {_short(row.float_bar)}, worst {_short(row.worst)}"
    )
    if row.beyond:
        text += f", {row.beyond:.0%} of the calls beyond it"
    if row.distance_bar is not None:
        text += f", distance {_short(row.distance)}, bar {_short(row.distance_bar)}"
    if row.quantisation_bar is not None:
        text += f"; quantisation error {_short(row.quantisation_error)}, bar {_short(row.quantisation_bar)}"
    return text


def _short(value: float | None) -> str:
    return "-" if finite(value) is None else f"{value:.1e}"
