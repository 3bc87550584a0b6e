"""`VerificationResult`: what the checks found, as a value, as a table and as the manifest stores it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bundle.manifest import Verification
from export.verify.comparison import Check, Comparison, Report, Result, finite

HEADINGS = (
    f"{'component':<14} {'output':<16} {'check':<20} {'lowering':>9} {'bar':>7} {'worst':>9} {'beyond':>7} "
    f"{'allowed':>7} {'distance':>9} {'bar':>7} {'margin':>8} {'quantisation':>13} {'bar':>7}"
)


@dataclass(frozen=True)
class VerificationResult:
    """All checks of a bundle. `reports` are measured values without a bar, by name."""

    status: Literal["passed", "failed"]
    rows: tuple[Comparison | Check, ...]
    reports: dict[str, dict[str, float]]

    @classmethod
    def of(cls, results: Iterable[Result]) -> "VerificationResult":
        """Passed where every check passed."""
        rows: list[Comparison | Check] = []
        reports = {}
        for result in results:
            if isinstance(result, Report):
                reports[result.name] = result.values
            else:
                rows.append(result)
        return cls("passed" if all(row.passed for row in rows) else "failed", tuple(rows), reports)

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    def stored(self) -> Verification:
        """The form of the manifest and of `verify.json`."""
        return Verification(
            status=self.status, rows=tuple(row.row() for row in self.rows), reports=self.reports
        )


def table(result: VerificationResult) -> str:
    """Text: a line per comparison with errors, bars and margin, then other checks, reports and the status."""
    comparisons = [row for row in result.rows if isinstance(row, Comparison)]
    checks = [row for row in result.rows if isinstance(row, Check)]
    lines = [HEADINGS, *map(_comparison_line, comparisons)]
    lines += [f"{'ok    ' if check.passed else 'FAILED'} {check.name}: {check.detail}" for check in checks]
    lines += [
        f"       {name}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items())
        for name, values in result.reports.items()
    ]
    passed = sum(row.passed for row in result.rows)
    lines.append(
        f"{result.status}: {passed} of {len(result.rows)} checks hold{_smallest_margin(comparisons)}"
    )
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
        f"{row.component:<14} {row.output:<16} {row.check:<20} {_short(row.typical):>9} {_short(row.bar):>7} "
        f"{_short(row.worst):>9} {row.beyond:>7.0%} {row.beyond_allowed:>7.0%} {_short(row.distance):>9} "
        f"{_short(row.distance_bar):>7} {factor:>8} {_short(row.quantisation_error):>13} "
        f"{_short(row.quantisation_bar):>7} {'' if row.passed else 'FAILED'}"
    ).rstrip()


def _smallest_margin(comparisons: list[Comparison]) -> str:
    margins = [
        (row.margin, f"{row.component}.{row.output}, {row.check}")
        for row in comparisons
        if finite(row.margin) is not None
    ]
    return "; smallest margin {:.1f}x at {}".format(*min(margins)) if margins else ""


def _failed_comparison(row: Comparison) -> str:
    text = (
        f"{row.component}.{row.output} ({row.check}): error {_short(row.typical)}, bar {_short(row.bar)}, "
        f"worst {_short(row.worst)}"
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
