"""What `verify` prints first: the verdict, the comparison nearest to its bar, a line for each component."""

import numpy as np

from voxport.export.report import charts
from voxport.export.verify.comparison import Check, Comparison
from voxport.export.verify.report import VerificationResult, summary


def comparison(component: str, error: float, output: str = "hidden") -> Comparison:
    """One call whose largest error is `error`, relative to a largest value of 1."""
    found = Comparison(component, output, "outputs", integer_activations=False, quantisation_bar=0.45)
    expected = np.linspace(0, 1, 8, dtype=np.float64)
    found.add(expected + error, expected, full=1.25 * expected)
    return found


def lines(*rows: Comparison | Check) -> list[str]:
    return summary(VerificationResult(rows, {})).splitlines()


def test_the_verdict_comes_first_then_the_nearest_comparison() -> None:
    left_out = Check("long run", True, "no decoder", left_out=True)
    found = lines(
        comparison("prefill", 1e-6), comparison("step", 5e-5), Check("free run", True, "ok"), left_out
    )
    assert found[0] == "passed: the artifacts match eager PyTorch in all 3 checks"
    assert (
        found[1]
        == "Closest: step.hidden (outputs) could be 2.0 times as far from eager and would still pass."
    )


def test_a_component_has_one_line_with_the_output_nearest_to_its_bar() -> None:
    found = lines(comparison("prefill", 1e-6), comparison("step", 1e-6, "logits"), comparison("step", 4e-5))
    table = [line.split() for line in found[4:6]]
    assert [row[0] for row in table] == ["prefill", "step"]
    assert table[1][1:3] == ["4.0e-05", "1.0e-04"]
    assert table[1][3:5] == ["2.0e-01", "4.5e-01"]  # a quarter too small: 0.25 / 1.25 of the norm
    assert table[1][5:] == ["hidden", "(outputs)"]


def test_failures_are_named_below_the_verdict() -> None:
    found = lines(comparison("prefill", 2e-4), Check("codec", False, "weights differ"))
    assert found[0] == "failed: 2 of 2 checks do not hold"
    assert found[1].startswith("  prefill.hidden (outputs): 2.0 times what is allowed")
    assert found[2] == "  codec: weights differ" and found[3] == "Worst: prefill.hidden (outputs)."
    assert found[6].endswith("FAILED")


def test_a_large_margin_is_not_spelled_out() -> None:
    assert "could be over 1000 times as far" in lines(comparison("prefill", 0.0))[1]


def test_an_infinite_error_is_drawn_too() -> None:
    expected = np.linspace(0, 1, 8)
    row = Comparison("step", "hidden", "20 steps", integer_activations=False)
    row.add(np.full(8, np.nan), expected)
    marks = [charts.errors([row]).count(f"fill: {color}") for color in (charts.BAD, charts.GOOD)]
    assert marks[0] and not marks[1]
    assert "nan" not in charts.drift([row]) and "inf" not in charts.drift([row])
