"""Runs one conversion of weights in a process of its own. Records its time, its peak memory and its sizes.

    convert_times.py run FOLDER -o OUT.json -- --to mlx --quant w4
    convert_times.py run FOLDER -o OUT.json --keep MLX_FOLDER -- --to mlx
    convert_times.py table docs/bench/conversions/*.json

Options after -- go to `voxport convert`. The converted folder is written beside OUT.json and removed, unless
--keep names it. `table` prints Markdown.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from voxport.bundle.files import files_below
from voxport.bundle.json_types import Json
from voxport.model.families import family_of, open_family
from voxport.model.stored_weights import StoredWeights
from voxport.runtime.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
MAX_SECONDS, MAX_MEMORY = 180.0, 3e9  # bars of a conversion at the published size
Result = Json


def convert(folder: Path, out: Path, options: list[str]) -> Result:
    """What `voxport convert` prints. Exits if it fails."""
    command = [sys.executable, "-m", "voxport.export", "convert", str(folder), str(out), *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"convert_times: the conversion ended with code {done.returncode}")
    content: Result = json.loads(done.stdout)
    return content


def size(folder: Path) -> int:
    """Bytes of the files of a folder."""
    return sum((folder / name).stat().st_size for name in files_below(folder))


def record(folder: Path, out: Path, options: list[str]) -> Result:
    load, started = os.getloadavg()[0], time.perf_counter()
    convert(folder, out, options)
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    family = open_family(family_of(folder))
    weights = StoredWeights(folder, family, family.config_of(folder))
    commit = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return {
        "source": {
            "family": family.name,
            "layout": "mlx" if weights.is_for_mlx else "published",
            "bytes": size(folder),
        },
        "options": options,
        "bytes": size(out),
        "seconds": round(seconds, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_memory_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "load_before": round(load, 2),
        "machine": describe_machine(None, "torch"),
        "commit": subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip() or "?",
    }


def run(arguments: argparse.Namespace, options: list[str]) -> None:
    beside: Path = arguments.output.parent
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside) as temporary:  # the system's may be in memory
        out = arguments.keep or Path(temporary) / "out"
        result = record(arguments.folder.resolve(), out, options)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def table(arguments: argparse.Namespace, _: list[str]) -> None:
    """One row per file."""
    print("| family | from | options | written | time | processor time | load before | peak memory |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted(arguments.files):
        result = json.loads(path.read_text(encoding="utf-8"))
        source, marks = result["source"], ("", " (over the bar)")
        late, large = result["seconds"] > MAX_SECONDS, result["peak_memory_bytes"] > MAX_MEMORY
        cells = (
            open_family(source["family"]).title,
            f"{source['layout']}, {source['bytes'] / 1e9:.1f} GB",
            f"`{' '.join(result['options'])}`",
            f"{result['bytes'] / 1e9:.1f} GB",
            f"{result['seconds']:.0f} s{marks[late]}",
            f"{result['processor_seconds']:.0f} s",
            f"{result['load_before']:.1f}",
            f"{result['peak_memory_bytes'] / 1e9:.1f} GB{marks[large]}",
        )
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="run one conversion")
    command.add_argument("folder", type=Path)
    command.add_argument("-o", "--output", type=Path, required=True)
    command.add_argument("--keep", type=Path, metavar="OUT", help="folder to write and keep")
    command.set_defaults(run=run)
    command = commands.add_parser("table", help="print the table of results")
    command.add_argument("files", type=Path, nargs="+")
    command.set_defaults(run=table)
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments = parser.parse_args(sys.argv[1:end])
    arguments.run(arguments, sys.argv[end + 1 :])


if __name__ == "__main__":
    main()
