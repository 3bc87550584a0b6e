"""Measures how soon new processes give their first output, and writes the median to docs/figures.

    python -m tools.opening_times ID voxport say "Hello there." --bundle BUNDLE --stream --chunk-frames 1

The command runs four times; the first run fills the caches of the system and is not counted.
"""

import argparse
import statistics
import subprocess
import sys
import time

from tools.figures import Row, conditions, put

RUNS = 3


def first_output(command: list[str]) -> float:
    """Seconds until the first byte on stdout. Exits if there is none."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        is_there = process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.kill()
    if not is_there:
        sys.exit(f"opening_times: no output of {' '.join(command)}")
    return seconds


def measured(name: str, command: list[str]) -> Row:
    _, *seconds = [first_output(command) for _ in range(1 + RUNS)]
    return {
        "id": name,
        "first_output_s": f"{statistics.median(seconds):.2f}",
        "range_s": f"{min(seconds):.2f}-{max(seconds):.2f}",
        **conditions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("id", help="name of the row in docs/figures/opening.csv")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command that writes to stdout")
    arguments = parser.parse_args()
    put("opening", [measured(arguments.id, arguments.command)])


if __name__ == "__main__":
    main()
