"""List the voices of a bundle, with the number of rows of each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bundle.bundle import Bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--json", action="store_true", help="print the number of rows by voice as JSON")


def run(arguments: argparse.Namespace) -> int:
    from runtime.families import read_constants
    from runtime.families.voxtral_tts.voices import load_voice

    bundle = Bundle(arguments.bundle)
    dim = read_constants(bundle.job).dim
    rows = {name: len(load_voice(bundle, name, dim)) for name in bundle.manifest.voices}
    lines = "\n".join(f"{name:<16} {count} rows" for name, count in rows.items())
    print(json.dumps(rows) if arguments.json else lines)
    return 0
