"""Writes the counts of a schemathesis run as JSON: requests by route and class of status, failures by check.

    SCHEMATHESIS_HOOKS=schemathesis_hooks PYTHONPATH=tools schemathesis run URL/openapi.json \
        --exclude-checks positive_data_acceptance --seed 20 --max-time 180 --request-timeout 120 \
        --continue-on-failure --report ndjson --report-dir REPORT
    schemathesis_summary.py REPORT/*.ndjson -o docs/bench/serving/schemathesis.json
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from voxport.bundle.json_types import Json

COMMAND = (
    "SCHEMATHESIS_HOOKS=schemathesis_hooks schemathesis run URL/openapi.json "
    "--exclude-checks positive_data_acceptance --seed {seed} --max-time {seconds} "
    "--request-timeout 120 --continue-on-failure --report ndjson"
)


def events(report: Path, kind: str) -> Iterator[Json]:  # the report of another program
    """The contents of the events `kind`."""
    with report.open() as lines:
        for line in lines:
            event = json.loads(line)
            if kind in event:
                yield event[kind]


def summary(report: Path, seconds: int) -> dict[str, object]:
    start = next(events(report, "Initialize"))
    routes: dict[str, Counter[str]] = {}
    checks, failures = Counter[str](), Counter[str]()
    for scenario in events(report, "ScenarioFinished"):
        recorder = scenario["recorder"]
        for name, interaction in recorder.get("interactions", {}).items():
            case = recorder["cases"][name]["value"]
            route = f"{case['method']} {case['path']}"
            status = (interaction["response"] or {}).get("status_code")
            routes.setdefault(route, Counter())[f"{status // 100}xx" if status else "no response"] += 1
        for each in (check for found in recorder.get("checks", {}).values() for check in found):
            checks[each["name"]] += 1
            failures[each["name"]] += each["status"] != "success"
    return {
        "command": COMMAND.format(seed=start["seed"], seconds=seconds),
        "schemathesis": start["schemathesis_version"],
        "seed": start["seed"],
        "bundles": "Qwen3-TTS and the embedded models, voxport serve --voices DIR --threads 1",
        "requests": sum(count for counts in routes.values() for count in counts.values()),
        "status_classes": {route: dict(sorted(counts.items())) for route, counts in sorted(routes.items())},
        "checks": {
            name: {"passed": checks[name] - failures[name], "failed": failures[name]} for name in checks
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="events of the run, .ndjson")
    parser.add_argument("--seconds", type=int, default=180, help="--max-time of the run (default: 180)")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(json.dumps(summary(options.report, options.seconds), indent=1) + "\n")


if __name__ == "__main__":
    main()
