"""Writes figures of documents to the CSV files in docs/figures, one file a subject.

    voxport bench BUNDLE --frames 50 --threads 2 --json > RUN.json            # three times
    python -m tools.figures speed "voxtral-tts onnx w4" RUN.json ...
    voxport evaluate BUNDLE --readings 4 -o RESULT.json
    python -m tools.figures evaluation "voxtral-tts onnx w4" RESULT.json
    python -m tools.figures codes "qwen3-tts-tiny onnx w4" BUNDLE/manifest.json
    python -m tools.calibration_figures qwen3-tts --seed 0 --recipe w4 --out FOLDER    # three seeds
    python -m tools.figures calibration "qwen3-tts-small w4" FOLDER/qwen3-tts-small-w4-plain-*.json

A row is named by its first column, `id`. It replaces the row of this name. Several runs give a median and a
range. The last columns are machine, versions, date and commit. Other tools call `put` with their rows.
"""

import argparse
import csv
import json
import statistics
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.runtime.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "figures"
CONDITIONS = ("machine", "versions", "date", "commit")
HARDWARE = ("processor", "instructions", "cores", "threads", "system")  # the other keys are versions
SHOWN_INSTRUCTIONS = ("AMX", "AVX-512 VNNI", "AVX-512", "AVX2")  # the first that a processor has
SPEED_PARTS = {  # column -> component; the second is the head of a frame, or the encoder of live audio
    "step_ms": ("decode_step",),
    "head_ms": ("acoustic_step", "code_predictor", "encode_chunk"),
    "codec_ms": ("codec_step",),
}
PERCENT = {"wer", "wer_full", "wer_difference_error", "wer_recordings", "wer_live", "not_ended", "cer"}
PERCENT |= {"stopped_early", "codes_equal", "other_codes_equal", "text_equal", "live_equal"}
Row = dict[str, str]


def put(subject: str, rows: Sequence[Row]) -> None:
    """Adds rows to a subject, or replaces rows of the same id. Columns of conditions stay last."""
    path = FOLDER / f"{subject}.csv"
    old = list(csv.DictReader(path.open(newline=""))) if path.exists() else []
    known = {row["id"]: row for row in [*old, *rows]}
    columns = list(dict.fromkeys(key for row in known.values() for key in row if key not in CONDITIONS))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *CONDITIONS], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(known.values())


def conditions(machine: Json | None = None) -> Row:
    """Where, with what and when. `machine` is the record of another process (default: this machine)."""
    found: Json = machine or describe_machine(None, "onnxruntime")
    has = (found.get("instructions") or "").split(", ")
    kind = next((name for name in SHOWN_INSTRUCTIONS if name in has), "")
    parts = [found["processor"], kind, f"{found['cores']} cores"]
    versions = [f"{key} {value}" for key, value in found.items() if key not in HARDWARE and value]
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": ", ".join(filter(None, parts)),
        "versions": ", ".join(sorted(versions)),
        "date": date.today().isoformat(),
        "commit": commit or "?",
    }


def speed(name: str, runs: Sequence[Json]) -> Row:
    """The row of one bundle from the results of `voxport bench`."""
    first = runs[0]
    frames = [float(run["frame"]["median_ms"]) for run in runs]
    output = "first_sound_s" if "first_sound_s" in first else "first_token_s"
    row = {
        "id": name,
        "frame_ms": f"{statistics.median(frames):.0f}",
        "frame_ms_range": f"{min(frames):.0f}-{max(frames):.0f}",
        "rtf": _median([run["rtf"] for run in runs], 2),
        "first_s": _median([run[output] for run in runs], 2),
    }
    for column, names in SPEED_PARTS.items():
        for part in set(names) & first["components"].keys():
            row[column] = _median([_milliseconds(run, part) for run in runs], 0)
    for streams in first.get("streams") or ():
        if "frames_per_s" in streams:
            found = [_of_streams(run, streams["streams"]) for run in runs]
            row[f"frames_per_s_{streams['streams']}"] = _median(found, 1)
    row |= {
        "mbu_percent": _median([100 * (run["frame"].get("mbu") or 0) for run in runs], 0),
        "bundle_gb": f"{first['bundle']['bytes'] / 1e9:.2f}",
        "resident_gb": _median([run["resident_bytes"] / 1e9 for run in runs], 2),
        "bandwidth_gb_s": _median([run["bandwidth_gb_s"] for run in runs], 0),
        "threads": str(first["machine"]["threads"] or "-"),
        "runs": str(len(runs)),
    }
    return row | conditions(first["machine"])


def _milliseconds(run: Json, part: str) -> float:
    """The time of a component in one frame: the median of a call, times its calls."""
    found = run["components"][part]
    return float(found["median_ms"] * found["calls"] / run["frame"]["frames"])


def _of_streams(run: Json, count: int) -> float:
    return next(float(row["frames_per_s"]) for row in run["streams"] if row["streams"] == count)


def _median(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f}"


def evaluation(name: str, results: Sequence[Json]) -> Row:
    """The row of one bundle from a result of `voxport evaluate`."""
    (found,) = results
    sentences = len({row["name"] for row in found["rows"]})
    row = {"id": name, "recogniser": found["recogniser"], "sentences": str(sentences)}
    row["readings"] = str(len(found["rows"]) // sentences)
    row |= {"bundle_mb": f"{found['bytes'] / 1e6:.1f}", "engine": found["engine"]}
    for key, value in found["figures"].items():
        digits = 2 if key.startswith("wer") else 1  # of 10,000 words or more
        row[key] = f"{100 * value:.{digits}f}" if key in PERCENT else f"{value:.2f}"
    return row | conditions(found.get("machine"))


def codes(name: str, results: Sequence[Json]) -> Row:
    """The row of one bundle of Qwen3-TTS from its verification: codes of full precision, in per cent."""
    reports = results[0]["verification"]["reports"]
    books = reports["codes over 1000 frames, artifact and full precision"]
    first, *others = (f"{100 * share:.1f}" for share in books.values())
    row = {"id": name, "code_0": first, "other_codes_least": min(others), "other_codes_most": max(others)}
    return row | conditions()


def calibration(name: str, results: Sequence[Json]) -> Row:
    """The row of one recipe from results of `tools.calibration_figures`, one for each seed.

    Equal codes in per cent, and the relative distance of hidden states: the mean, and the value of each seed.
    """
    seeds = " ".join(str(result["seed"]) for result in results)
    row = {"id": name, "seeds": seeds, "frames": str(results[0]["frames"])}
    for key, digits in (("first", 1), ("others", 1), ("distance", 3)):
        for kind in ("plain", "calibrated"):
            if values := [result[kind][key] for result in results if key in result[kind]]:
                row[f"{key}_{kind}"] = f"{statistics.mean(values):.{digits}f}"
                row[f"{key}_{kind}_seeds"] = " ".join(f"{value:.{digits}f}" for value in values)
    return row | conditions(results[0]["machine"])


SUBJECTS = {"speed": speed, "evaluation": evaluation, "codes": codes, "calibration": calibration}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("id", help="name of the row")
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    arguments = parser.parse_args()
    results = [json.loads(path.read_text()) for path in arguments.results]
    put(arguments.subject, [SUBJECTS[arguments.subject](arguments.id, results)])


if __name__ == "__main__":
    main()
