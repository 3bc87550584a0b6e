"""The result of verification: its stored form, the table for people, and a line for each failure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bundle.manifest import Verification
from export.verify.comparison import Check, Comparison, Report, Result, finite, least_margin

HEADINGS = (
    f"{'component':<14} {'output':<16} {'check':<36} {'lowering':>9} {'bar':>7} {'worst':>9} {'beyond':>7} "
    f"{'allowed':>7} {'distance':>9} {'bar':>7} {'margin':>8} {'quantisation':>13} {'bar':>7}"
)
SUMMARY_HEADINGS = (
    f"{'component':<16} {'lowering':>9} {'bar':>9} {'quantisation':>14} {'bar':>9}   nearest to its bar"
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


def summary(result: VerificationResult) -> str:
    """Text: the verdict in words, the closest margin, and a line for each component."""
    comparisons = [row for row in result.rows if isinstance(row, Comparison)]
    failed = failures(result)
    done = len(result.rows) - sum(isinstance(row, Check) and row.left_out for row in result.rows)
    lines = [f"failed: {len(failed)} of {done} checks do not hold", *(f"  {text}" for text in failed)]
    if not failed:
        lines = [f"passed: the artifacts match eager PyTorch in all {done} checks"]
    if comparisons:
        lines += [_closest(least_margin(comparisons)), "", SUMMARY_HEADINGS]
        lines += [
            _component_line([row for row in comparisons if row.component == name])
            for name in dict.fromkeys(row.component for row in comparisons)
        ]
    return "\n".join(
        [*lines, "", "--details shows every comparison; docs/verification.md explains the columns"]
    )


def _closest(row: Comparison) -> str:
    where = f"{row.component}.{row.output} ({row.name})"
    if not row.passed:
        return f"Worst: {where}."
    factor = f"{row.margin:.1f}" if row.margin < 1000 else "over 1000"
    return f"Closest: {where} could be {factor} times as far from eager and would still pass."


def _component_line(rows: list[Comparison]) -> str:
    """The lowering error of the output that is nearest to its bar, and the largest quantisation error."""
    row = least_margin(rows)
    error, bar = (
        (row.worst, row.float_bar) if row.worst <= row.float_bar else (row.distance, row.distance_bar)
    )
    coarsest = max(rows, key=lambda row: row.quantisation_error or 0.0)
    return (
        f"{row.component:<16} {_short(error):>9} {_short(bar):>9} {_short(coarsest.quantisation_error):>14} "
        f"{_short(coarsest.quantisation_bar):>9}   {row.output} ({row.name}){'' if row.passed else ' FAILED'}"
    )


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
