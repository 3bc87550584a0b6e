"""The result of verification: its stored form, and its texts for people."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from voxport.bundle.manifest import Verification
from voxport.export.verify.comparison import (
    Assertion,
    Comparison,
    FreeRun,
    Measurement,
    Result,
    finite,
    least_margin,
)

SUMMARY = "{:<16} {:>9} {:>9} {:>14} {:>9}   {}"
SUMMARY_HEADINGS = ("component", "lowering", "bar", "quantisation", "bar", "nearest to its bar")


@dataclass(frozen=True)
class VerificationResult:
    """All results of a bundle. `measurements` are values without a bar, by name."""

    rows: tuple[Comparison | Assertion, ...]
    measurements: dict[str, dict[str, float]]
    free_runs: tuple[FreeRun, ...] = ()

    @classmethod
    def of(cls, results: Iterable[Result]) -> "VerificationResult":
        found = list(results)
        return cls(
            tuple(result for result in found if isinstance(result, Comparison | Assertion)),
            {result.name: result.values for result in found if isinstance(result, Measurement)},
            tuple(result for result in found if isinstance(result, FreeRun)),
        )

    @property
    def comparisons(self) -> list[Comparison]:
        return [row for row in self.rows if isinstance(row, Comparison)]

    @property
    def assertions(self) -> list[Assertion]:
        return [row for row in self.rows if isinstance(row, Assertion)]

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    @property
    def status(self) -> Literal["passed", "failed"]:
        return "passed" if self.passed else "failed"

    def stored(self) -> Verification:
        """The form of the manifest and of `verify.json`."""
        rows = tuple(row.row() for row in self.rows)
        return Verification(status=self.status, rows=rows, reports=self.measurements)

    def as_json(self) -> str:
        """The content of `verify.json`."""
        return json.dumps(self.stored().model_dump(mode="json"), indent=1) + "\n"


def summary(result: VerificationResult) -> str:
    """Text: the verdict, each failure, and a line for each component."""
    first, *closest = verdict(result)
    lines = [first, *(f"  {text}" for text in failures(result)), *closest]
    if rows := component_rows(result.comparisons):
        lines += ["", SUMMARY.format(*SUMMARY_HEADINGS), *(SUMMARY.format(*row.values()) for row in rows)]
    return "\n".join(lines)


def verdict(result: VerificationResult) -> list[str]:
    """Whether all checks hold, and how near the closest comparison is to its bar."""
    left_out, failed = sum(row.left_out for row in result.assertions), len(failures(result))
    done = len(result.rows) - left_out
    suffix = f"; {left_out} left out" if left_out else ""
    first = f"failed: {failed} of {done} checks do not hold{suffix}"
    if not failed:
        first = f"passed: the artifacts match eager PyTorch in all {done} checks{suffix}"
    if not result.comparisons:
        return [first]
    row = least_margin(result.comparisons)
    where = f"{row.component}.{row.output} ({row.name})"
    if not row.passed:
        return [first, f"Worst: {where}."]
    return [first, f"Closest: {where} could be {_factor(row.margin)} times as far from eager and still pass."]


def component_rows(comparisons: list[Comparison]) -> list[dict[str, str]]:
    """The columns of the summary as text, for each component: the output that is nearest to its bar, and the
    largest quantisation error.
    """
    by_component: dict[str, list[Comparison]] = {}
    for row in comparisons:
        by_component.setdefault(row.component, []).append(row)
    return [_component_row(name, rows) for name, rows in by_component.items()]


def _component_row(component: str, rows: list[Comparison]) -> dict[str, str]:
    row = least_margin(rows)
    coarsest = max(rows, key=lambda row: row.quantisation_error or 0.0)
    return {
        "component": component,
        "error": _short(row.nearest.value),
        "bar": _short(row.nearest.bar),
        "quantisation": _short(coarsest.quantisation_error),
        "quantisation_bar": _short(coarsest.quantisation_bar),
        "where": f"{row.output} ({row.name}), {row.nearest.name}{'' if row.passed else ' FAILED'}",
    }


def failures(result: VerificationResult) -> list[str]:
    """A line for each check that failed."""
    return [
        _failed_comparison(row) if isinstance(row, Comparison) else f"{row.name}: {row.detail}"
        for row in result.rows
        if not row.passed
    ]


def _failed_comparison(row: Comparison) -> str:
    factor = f"{1 / row.margin:.1f} times what is allowed: " if 0 < row.margin < 1 else ""
    failed = [
        f"{each.name} {_short(each.value)}, bar {_short(each.bar)}"
        for each in row.criteria
        if not each.passed
    ]
    if not row.quantisation_passed:
        failed.append(
            f"quantisation error {_short(row.quantisation_error)}, bar {_short(row.quantisation_bar)}"
        )
    return f"{row.component}.{row.output} ({row.name}): {factor}{'; '.join(failed)}"


def _factor(margin: float) -> str:
    return f"{margin:.1f}" if margin < 1000 else "over 1000"


def _short(value: float | None) -> str:
    return "-" if finite(value) is None else f"{value:.1e}"
