"""The result of verification: its stored form, the table for people, and a line for each failure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from voxport.bundle.manifest import Verification
from voxport.export.verify.comparison import Check, Comparison, FreeRun, Report, Result, finite, least_margin

HEADINGS = (
    f"{'component':<14} {'output':<16} {'check':<36} {'lowering':>9} {'bar':>7} {'worst':>9} {'beyond':>7} "
    f"{'allowed':>7} {'distance':>9} {'bar':>7} {'gain':>9} {'bar':>7} {'margin':>8} {'quantisation':>13} "
    f"{'bar':>7}"
)
SUMMARY = "{:<16} {:>9} {:>9} {:>14} {:>9}   {}"
SUMMARY_HEADINGS = ("component", "lowering", "bar", "quantisation", "bar", "nearest to its bar")


@dataclass(frozen=True)
class VerificationResult:
    """All checks of a bundle. `reports` are measured values without a bar, by name."""

    rows: tuple[Comparison | Check, ...]
    reports: dict[str, dict[str, float]]
    free_runs: tuple[FreeRun, ...] = ()

    @classmethod
    def of(cls, results: Iterable[Result]) -> "VerificationResult":
        found = list(results)
        return cls(
            tuple(result for result in found if isinstance(result, Comparison | Check)),
            {result.name: result.values for result in found if isinstance(result, Report)},
            tuple(result for result in found if isinstance(result, FreeRun)),
        )

    def with_report(self, report: Report) -> "VerificationResult":
        """The same with one more report."""
        return replace(self, reports=self.reports | {report.name: report.values})

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


def verdict(result: VerificationResult) -> str:
    """Whether all checks hold, and how near the closest comparison is to its bar."""
    comparisons = [row for row in result.rows if isinstance(row, Comparison)]
    done = len(result.rows) - sum(isinstance(row, Check) and row.left_out for row in result.rows)
    failed = len(failures(result))
    first = f"failed: {failed} of {done} checks do not hold"
    if not failed:
        first = f"passed: the artifacts match eager PyTorch in all {done} checks"
    return "\n".join([first, *([_closest(least_margin(comparisons))] if comparisons else [])])


def summary(result: VerificationResult) -> str:
    """Text: the verdict, each failure, and a line for each component."""
    first, *closest = verdict(result).split("\n")
    lines = [first, *(f"  {text}" for text in failures(result)), *closest]
    if rows := component_rows([row for row in result.rows if isinstance(row, Comparison)]):
        lines += ["", SUMMARY.format(*SUMMARY_HEADINGS), *(SUMMARY.format(*row.values()) for row in rows)]
    return "\n".join(lines)


def _closest(row: Comparison) -> str:
    where = f"{row.component}.{row.output} ({row.name})"
    if not row.passed:
        return f"Worst: {where}."
    factor = f"{row.margin:.1f}" if row.margin < 1000 else "over 1000"
    return f"Closest: {where} could be {factor} times as far from eager and would still pass."


def component_rows(comparisons: list[Comparison]) -> list[dict[str, str]]:
    """The columns of the summary as text, for each component: the lowering error of the output that is
    nearest to its bar, and the largest quantisation error.
    """
    by_component: dict[str, list[Comparison]] = {}
    for row in comparisons:
        by_component.setdefault(row.component, []).append(row)
    return [_component_row(name, rows) for name, rows in by_component.items()]


def _component_row(component: str, rows: list[Comparison]) -> dict[str, str]:
    row = least_margin(rows)
    error, bar = error_and_bar(row)
    coarsest = max(rows, key=lambda row: row.quantisation_error or 0.0)
    return {
        "component": component,
        "error": _short(error),
        "bar": _short(bar),
        "quantisation": _short(coarsest.quantisation_error),
        "quantisation_bar": _short(coarsest.quantisation_bar),
        "where": f"{row.output} ({row.name}){'' if row.passed else ' FAILED'}",
    }


def error_and_bar(row: Comparison) -> tuple[float, float]:
    """The largest error with its bar. Where that is beyond it because of ties, the distance or the gain,
    whichever is nearer to its bar.
    """
    if row.worst <= row.float_bar or row.distance_bar is None:
        return row.worst, row.float_bar
    distance = row.distance, row.distance_bar
    if row.gain is None or row.gain[0] * row.distance_bar <= row.distance * row.gain[1]:
        return distance
    return row.gain


def failures(result: VerificationResult) -> list[str]:
    """A line for each check that failed."""
    return [
        _failed_comparison(row) if isinstance(row, Comparison) else f"{row.name}: {row.detail}"
        for row in result.rows
        if not row.passed
    ]


def _comparison_line(row: Comparison) -> str:
    margin, (gain, gain_bar) = finite(row.margin), row.gain or (None, None)
    factor = "-" if margin is None else f"{margin:.1f}x" if margin < 1000 else ">1000x"
    return (
        f"{row.component:<14} {row.output:<16} {row.name:<36} {_short(row.typical):>9} "
        f"{_short(row.float_bar):>7} {_short(row.worst):>9} {row.beyond:>7.0%} "
        f"{row.beyond_allowed:>7.0%} {_short(row.distance):>9} {_short(row.distance_bar):>7} "
        f"{_short(gain):>9} {_short(gain_bar):>7} {factor:>8} "
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
        if row.gain is not None and row.distance <= row.distance_bar:  # otherwise it explains nothing more
            text += ", gain {:.1e} of half of the channels, bar {:.1e}".format(*row.gain)
    if row.quantisation_bar is not None:
        text += f"; quantisation error {_short(row.quantisation_error)}, bar {_short(row.quantisation_bar)}"
    return text


def _short(value: float | None) -> str:
    return "-" if finite(value) is None else f"{value:.1e}"
